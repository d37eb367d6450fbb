package pods

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/kubeletplugin/resolve"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// reportUnsupported counts each unsupported feature of each volume once, with an event for those without which the pod
// runs; complain sends the events for the others.
func (c *Controller) reportUnsupported(e *entry, pod *corev1.Pod, wanted []volume.Publication, problems []*resolve.Problem) {
	for _, p := range problems {
		if p.Feature != "" {
			c.count(e, p.Feature, p.Volume)
		}
	}
	for i := range wanted {
		p := &wanted[i]
		for _, f := range p.Unsupported {
			if c.count(e, f.Feature, p.SpecName) {
				c.cfg.Events.Warning(pod, f.Reason, fmt.Sprintf("volume %q: %s", p.SpecName, f.Message))
			}
		}
	}
}

// count counts a feature of a volume and reports whether it is the first time for this pod.
func (c *Controller) count(e *entry, feature, name string) bool {
	key := [2]string{feature, name}
	if e.unsupported[key] {
		return false
	}
	if e.unsupported == nil {
		e.unsupported = map[[2]string]bool{}
	}
	e.unsupported[key] = true
	if c.cfg.Unsupported != nil {
		c.cfg.Unsupported(feature)
	}
	return true
}

// recheck looks for features that the volumes of a running pod have come to ask for since a CSIDriver object has changed. Later calls
// for the volumes follow that object; nothing is done to them for it.
func (c *Controller) recheck(ctx context.Context, e *entry, pod *corev1.Pod) {
	if e.generation == c.generation.Load() || len(e.wanted) == 0 {
		return
	}
	wanted, problems := c.resolve(ctx, e, pod)
	if len(problems) > 0 {
		klog.FromContext(ctx).V(4).Info("Volumes of a running pod cannot be resolved", logging.KeyReason, resolve.Join(problems).Error())
	}
	for _, p := range wanted {
		c.cfg.Volumes.Refresh(p)
	}
	c.reportUnsupported(e, pod, wanted, nil)
}
