package pods

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/reconcile"
)

const (
	// ExitAfterAnnotation on a pod is the time after which its containers end with exit code 0, as a Go duration: "30s". It is counted from the
	// start of the containers in the status of the pod, which has whole seconds. So Jobs complete on a node without containers.
	ExitAfterAnnotation = "csi.longshore.dev/exit-after"
	// reasonInvalidExitAfter is that of the event on a pod whose annotation has no effect.
	reasonInvalidExitAfter = "InvalidExitAfter"
)

// exitInTime ends the containers of a running pod whose time is over, or asks for another look when it is.
func (c *Controller) exitInTime(ctx context.Context, e *entry, pod *corev1.Pod) (reconcile.Result, error) {
	value, ok := pod.Annotations[ExitAfterAnnotation]
	if !ok || !started(pod) { // the watch brings the status
		return reconcile.Result{}, nil
	}
	after, err := exitAfter(pod, value)
	if err != nil {
		c.cfg.Events.Warning(pod, reasonInvalidExitAfter, err.Error())
		return reconcile.Result{}, nil
	}
	if left := time.Until(startOf(pod).Add(after)); left > 0 {
		return reconcile.Result{After: left}, nil
	}
	if err := c.patch(ctx, pod, Completed(pod, metav1.Now())); err != nil {
		if replaced(err) {
			return reconcile.Result{}, nil // the watch brings the deletion
		}
		return reconcile.Result{}, err
	}
	e.ended, e.finished = true, true
	klog.FromContext(ctx).V(2).Info("Pod has completed")
	_, err = c.release(pod)
	return reconcile.Result{}, err
}

func exitAfter(pod *corev1.Pod, value string) (time.Duration, error) {
	after, err := time.ParseDuration(value)
	switch {
	case err != nil || after < 0:
		return 0, fmt.Errorf("annotation %s=%q has no effect: it must be a duration, such as 30s", ExitAfterAnnotation, value)
	case pod.Spec.RestartPolicy == corev1.RestartPolicyAlways:
		return 0, fmt.Errorf("annotation %s=%q has no effect: restartPolicy must be Never or OnFailure, because containers of a pod with Always are restarted", ExitAfterAnnotation, value)
	}
	return after, nil
}

// startOf returns when the last container of a running pod was started.
func startOf(pod *corev1.Pod) time.Time {
	var last time.Time
	for i := range pod.Status.ContainerStatuses {
		if r := pod.Status.ContainerStatuses[i].State.Running; r != nil && r.StartedAt.After(last) {
			last = r.StartedAt.Time
		}
	}
	return last
}
