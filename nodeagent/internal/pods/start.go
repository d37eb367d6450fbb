package pods

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/kubeletplugin/resolve"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

const (
	// transientGrace is how long a refusal by the API server's authorizer is not worth an event.
	transientGrace = 5 * time.Second
	// transientRetry is how soon the request is repeated.
	transientRetry = 50 * time.Millisecond
)

// start publishes the pod's volumes and reports it as running when they are all there.
func (c *Controller) start(ctx context.Context, e *entry, pod *corev1.Pod) (reconcile.Result, error) {
	if e.running {
		c.recheck(ctx, e, pod)
		return c.exitInTime(ctx, e, pod)
	}
	if e.since.IsZero() {
		e.since = time.Now()
		e.lastEvent = e.since
	}
	wanted, problems := c.resolve(ctx, e, pod)
	for _, p := range wanted {
		c.cfg.Volumes.Want(p)
	}
	missing := c.missing(wanted)
	c.reportUnsupported(e, pod, wanted, problems)
	if len(missing)+len(problems) == 0 {
		if err := c.run(ctx, e, pod); err != nil {
			return reconcile.Result{}, err
		}
		return c.exitInTime(ctx, e, pod)
	}
	if waits := c.complain(e, pod, missing, problems); waits != "" {
		if rejected, err := c.rejectOverLimit(ctx, e, pod, missing, waits); rejected {
			return reconcile.Result{}, err
		}
		c.cfg.Events.Warning(pod, volume.ReasonFailedMount, "Unable to attach or mount volumes: "+waits)
	}
	if resolve.Transient(problems) && time.Since(e.since) < transientGrace {
		klog.FromContext(ctx).V(4).Info("Waiting for the authorizer to see the pod", logging.KeyReason, resolve.Join(problems).Error())
		return reconcile.Result{After: transientRetry}, nil
	}
	if len(problems) > 0 {
		return reconcile.Result{}, resolve.Join(problems)
	}
	return reconcile.Result{After: max(c.cfg.Patience-time.Since(e.lastEvent), time.Second)}, nil
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

// missing is a volume that is not published yet.
type missing struct {
	volume     *volume.Volume
	podVolumes []string
	unattached bool
}

// missing lists the volumes that are not published yet.
func (c *Controller) missing(wanted []volume.Publication) []missing {
	var all []missing
	for i := range wanted {
		p := &wanted[i]
		st, ok := c.cfg.Volumes.Status(p.Volume.Name, p.Key())
		if !ok || !st.Published {
			all = append(all, missing{&p.Volume, p.PodVolumes, errors.Is(st.Err, volume.ErrNotAttached)})
		}
	}
	return all
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

// complain reports the problems that keep the pod from running. From time to time it returns, in the kubelet's words, for which of the
// pod's volumes the pod waits.
func (c *Controller) complain(e *entry, pod *corev1.Pod, absent []missing, problems []*resolve.Problem) (waits string) {
	waited := time.Since(e.since)
	var unmounted, unattached []string
	failed := make([]string, 0, len(problems))
	for _, p := range problems {
		failed = append(failed, p.Volume)
		if !p.Transient || waited > transientGrace {
			c.cfg.Events.Warning(pod, p.Reason, fmt.Sprintf("MountVolume.SetUp failed for volume %q : %v", p.Volume, p.Err))
		}
	}
	if time.Since(e.lastEvent) < c.cfg.Patience {
		return ""
	}
	e.lastEvent = time.Now()
	for _, m := range absent {
		unmounted = append(unmounted, m.podVolumes...)
		if m.unattached {
			unattached = append(unattached, m.podVolumes...)
		}
	}
	return fmt.Sprintf("unmounted volumes=%v, unattached volumes=%v, failed to process volumes=%v: timed out waiting for the condition",
		sorted(append(unmounted, failed...)), sorted(unattached), sorted(failed))
}

func sorted(names []string) []string { return slices.Sorted(slices.Values(names)) }

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
