package pods

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// confirmDeletion is how long the watch has to bring a deletion that the API says has happened before.
const confirmDeletion = time.Second

// unstageCheck is how soon it is looked again whether a volume is unstaged.
const unstageCheck = 500 * time.Millisecond

// terminate ends the pod's containers, releases its volumes and deletes it from the API, in this
// order: a claim that the pod protects must not go while it is mounted. Nor may it go while a volume is staged that needs no attachment: nothing else keeps
// DeleteVolume from coming first (kubernetes/kubernetes 94108).
func (c *Controller) terminate(ctx context.Context, e *entry, pod *corev1.Pod) (reconcile.Result, error) {
	if e.deleted {
		return reconcile.Result{}, nil
	}
	if !e.ended && !ended(pod) {
		err := c.patch(ctx, pod, Ended(pod, metav1.Now()))
		if err != nil && !replaced(err) {
			return reconcile.Result{}, err
		}
		e.ended = err == nil
	}
	e.volumes = sets.List(sets.New(e.volumes...).Insert(c.cfg.Volumes.Of(pod.UID)...))
	if released, err := c.release(pod); err != nil || !released {
		return reconcile.Result{}, err
	}
	if e.volumes = c.cfg.Volumes.Unstaging(e.volumes); len(e.volumes) > 0 {
		return reconcile.Result{After: unstageCheck}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	now := int64(0)
	err := c.cfg.Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now,
		Preconditions:      &metav1.Preconditions{UID: &pod.UID},
	})
	switch {
	case replaced(err):
		// Only the watch knows that the pod is gone: an API server that has just started says so of pods that it has not
		// read yet, because the admission of a node's requests looks into a cache.
		return reconcile.Result{After: confirmDeletion}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("delete pod %q: %w", klog.KObj(pod), err)
	}
	e.deleted = true
	klog.FromContext(ctx).V(2).Info("Pod is deleted")
	return reconcile.Result{}, nil
}

// release gives up the pod's volumes; false means that some are still being unpublished, and that
// the pod is woken when they are not.
func (c *Controller) release(pod *corev1.Pod) (bool, error) {
	c.cfg.Volumes.Drop(volume.Pod{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ServiceAccount: pod.Spec.ServiceAccountName,
	})
	if c.cfg.Volumes.Busy(pod.UID) {
		return false, nil
	}
	if err := c.cfg.Clean(pod.UID); err != nil {
		if pod.Name != "" {
			c.cfg.Events.Warning(pod, volume.ReasonFailedUnmount, err.Error())
		}
		return false, err
	}
	return true, nil
}

// replaced reports whether the pod of that UID is not there any more.
func replaced(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsConflict(err) }
