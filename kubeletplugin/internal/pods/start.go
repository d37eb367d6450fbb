package pods

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/resolve"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/volume"
)

const (
	// lagGrace is how long a refusal by the API server's authorizer is not worth an event.
	lagGrace = 5 * time.Second
	// lagRetry is how soon it is asked again.
	lagRetry = 50 * time.Millisecond
)

// start publishes the pod's volumes and reports it as running when they are all there.
func (c *Controller) start(ctx context.Context, e *entry, pod *corev1.Pod) (reconcile.Result, error) {
	if e.running {
		return reconcile.Result{}, nil
	}
	if e.since.IsZero() {
		e.since = time.Now()
		e.told = e.since
	}
	wanted, problems := c.resolve(ctx, e, pod)
	for _, p := range wanted {
		c.cfg.Volumes.Want(p)
	}
	missing := c.missing(wanted)
	if len(missing)+len(problems) == 0 {
		return reconcile.Result{}, c.run(ctx, e, pod)
	}
	c.complain(e, pod, missing, problems)
	if lagging(problems) && time.Since(e.since) < lagGrace {
		klog.FromContext(ctx).V(4).Info("Waiting for the authorizer to see the pod", logging.KeyReason, joined(problems).Error())
		return reconcile.Result{After: lagRetry}, nil
	}
	if len(problems) > 0 {
		return reconcile.Result{}, joined(problems)
	}
	return reconcile.Result{After: max(c.cfg.Patience-time.Since(e.told), time.Second)}, nil
}

// resolve finds the volumes that the pod wants, once if nothing is wrong with them: a pod's volumes
// do not change, and neither does what a bound claim is bound to.
func (c *Controller) resolve(ctx context.Context, e *entry, pod *corev1.Pod) ([]volume.Publication, []*resolve.Problem) {
	generation := c.generation.Load()
	if e.generation == generation {
		return e.wanted, nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	wanted, problems := c.cfg.Resolve(ctx, pod)
	if len(problems) == 0 {
		e.wanted, e.generation = wanted, generation
	}
	return wanted, problems
}

// missing lists the spec names of the volumes that are not published yet.
func (c *Controller) missing(wanted []volume.Publication) []string {
	var names []string
	for i := range wanted {
		p := &wanted[i]
		if st, ok := c.cfg.Volumes.Status(p.Volume.Name, p.Key()); !ok || !st.Published {
			names = append(names, p.SpecName)
		}
	}
	return names
}

// run reports the pod as running, unless it is reported so already.
func (c *Controller) run(ctx context.Context, e *entry, pod *corev1.Pod) error {
	if !started(pod) {
		if err := c.patch(ctx, pod, Running(pod, c.cfg.HostIP, metav1.Now())); err != nil {
			return err
		}
		klog.FromContext(ctx).V(2).Info("Pod is running")
	}
	e.running, e.since = true, time.Time{}
	return nil
}

// complain tells users what keeps the pod from running: each problem at once, and from time to time
// that the pod waits, in the kubelet's words.
func (c *Controller) complain(e *entry, pod *corev1.Pod, missing []string, problems []*resolve.Problem) {
	waited := time.Since(e.since)
	failed := make([]string, 0, len(problems))
	for _, p := range problems {
		failed = append(failed, p.Volume)
		if !p.Lag || waited > lagGrace {
			c.cfg.Events.Warning(pod, p.Reason, fmt.Sprintf("MountVolume.SetUp failed for volume %q : %v", p.Volume, p.Err))
		}
	}
	if time.Since(e.told) < c.cfg.Patience {
		return
	}
	e.told = time.Now()
	c.cfg.Events.Warning(pod, volume.ReasonFailedMount, fmt.Sprintf(
		"Unable to attach or mount volumes: unmounted volumes=[%s], unattached volumes=[], failed to process volumes=[%s]: timed out waiting for the condition",
		strings.Join(append(missing, failed...), " "), strings.Join(failed, " ")))
}

func (c *Controller) patch(ctx context.Context, pod *corev1.Pod, s corev1.PodStatus) error {
	patch, err := Patch(pod.UID, s)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	_, err = c.cfg.Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("report status of pod %q: %w", klog.KObj(pod), err)
	}
	return nil
}

// lagging reports whether there are problems, all of which should pass by themselves.
func lagging(problems []*resolve.Problem) bool {
	for _, p := range problems {
		if !p.Lag {
			return false
		}
	}
	return len(problems) > 0
}

func joined(problems []*resolve.Problem) error {
	errs := make([]error, 0, len(problems))
	for _, p := range problems {
		errs = append(errs, p.Wrap())
	}
	return errors.Join(errs...)
}
