package pods

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
)

// reasonLimitExceeded is the kubelet's reason, in the status of the pod and of the event, for a pod that is rejected because a volume of
// it cannot be attached: its controller then makes another pod, which the scheduler places elsewhere.
const reasonLimitExceeded = "VolumeAttachmentLimitExceeded"

// rejectOverLimit rejects a pod that has waited long enough if one of its volumes is not attached because of the volume limit of the node.
func (c *Controller) rejectOverLimit(ctx context.Context, e *entry, pod *corev1.Pod, absent []missing, waits string) (bool, error) {
	if !c.overLimit(ctx, absent) {
		return false, nil
	}
	message := "Node has reached its volume attachment limit, rejecting pod. " + waits
	if err := c.patch(ctx, pod, Rejected(pod, reasonLimitExceeded, message, metav1.Now())); err != nil {
		if replaced(err) {
			return true, nil // the watch brings the deletion
		}
		e.lastEvent = time.Time{} // so that the retry rejects it
		return true, err
	}
	e.ended, e.finished = true, true
	c.cfg.Events.Warning(pod, reasonLimitExceeded, message)
	klog.FromContext(ctx).Info("Pod is rejected", logging.KeyReason, message)
	_, err := c.release(pod)
	return true, err
}

func (c *Controller) overLimit(ctx context.Context, absent []missing) bool {
	if c.cfg.LimitExceeded == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	for _, m := range absent {
		if m.unattached && c.cfg.LimitExceeded(ctx, m.volume) {
			return true
		}
	}
	return false
}
