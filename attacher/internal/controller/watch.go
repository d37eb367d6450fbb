package controller

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/longshore-csi/longshore/csikit/reconcile"
)

// indexVA finds the driver's VolumeAttachments by volume and by node.
func indexVA(driver string) map[string]func(*storagev1.VolumeAttachment) []string {
	ours := func(value func(*storagev1.VolumeAttachment) string) func(*storagev1.VolumeAttachment) []string {
		return func(va *storagev1.VolumeAttachment) []string {
			if v := value(va); va.Spec.Attacher == driver && v != "" {
				return []string{v}
			}
			return nil
		}
	}
	return map[string]func(*storagev1.VolumeAttachment) []string{
		indexPV:   ours(pvName),
		indexNode: ours(func(va *storagev1.VolumeAttachment) string { return va.Spec.NodeName }),
	}
}

// needsSync reports whether a change may alter what the VolumeAttachment needs. Own writes do not: an error in the status
// must not end the backoff after that error.
func needsSync(before, after *storagev1.VolumeAttachment) bool {
	switch {
	case before == nil, before.UID != after.UID:
		return true
	case before.ResourceVersion == after.ResourceVersion:
		return true // the periodic resync
	case isDeleting(before) != isDeleting(after):
		return true
	}
	return before.Status.Attached && !after.Status.Attached
}

func (c *Controller) vaChanged(before, after *storagev1.VolumeAttachment) {
	if before != nil && (after == nil || after.UID != before.UID) {
		c.vaGone(before)
	}
	if after == nil {
		return
	}
	c.noteVA(after)
	if c.ours(after) && needsSync(before, after) {
		c.route(after)
	}
}

// vaGone drops the state of va, and queues its PersistentVolume, whose finalizer may now be removed.
func (c *Controller) vaGone(va *storagev1.VolumeAttachment) {
	c.forced.drop(va.UID)
	if name := pvName(va); name != "" && c.ours(va) {
		c.pvQueue.Add(name)
	}
}

func (c *Controller) pvChanged(before, after *corev1.PersistentVolume) {
	if after == nil {
		return
	}
	resynced := before != nil && before.UID == after.UID && before.ResourceVersion == after.ResourceVersion
	c.notePV(after)
	if isReleasable(c.cfg.Driver, after) {
		c.pvQueue.Add(after.Name)
	}
	if before == nil || before.UID != after.UID || !resynced && !equality.Semantic.DeepEqual(before.Spec, after.Spec) {
		c.wakeAll(c.vas.ByIndex(indexPV, after.Name))
	}
}

func (c *Controller) csiNodeChanged(before, after *storagev1.CSINode) {
	if after == nil {
		c.nodes.forget(before.Name)
		return
	}
	if id := csiNodeID(after, c.cfg.Driver); id != "" && id != csiNodeID(before, c.cfg.Driver) {
		c.nodes.forget(after.Name)
		c.wakeAll(c.vas.ByIndex(indexNode, after.Name))
	}
}

func (c *Controller) wakeAll(vas []*storagev1.VolumeAttachment) {
	for _, va := range vas {
		c.wake(va)
	}
}

// wake ends the backoff of va and queues it, if it needs anything.
func (c *Controller) wake(va *storagev1.VolumeAttachment) {
	if queue := c.queueOf(va); queue != nil {
		queue.Forget(va.Name)
		queue.Add(va.Name)
	}
}

// route puts va into the queue that it belongs to.
func (c *Controller) route(va *storagev1.VolumeAttachment) {
	if queue := c.queueOf(va); queue != nil {
		queue.Add(va.Name)
	}
}

// queueOf returns the queue of the step that va needs next, nil if va needs none.
func (c *Controller) queueOf(va *storagev1.VolumeAttachment) *reconcile.Controller[string] {
	switch c.step(va) {
	case stepAttach:
		return c.attachQueue
	case stepDetach:
		return c.detachQueue
	default:
		return nil
	}
}

// step decides what va needs next.
func (c *Controller) step(va *storagev1.VolumeAttachment) step {
	return nextStep(va, c.finalizer, c.forced.has(va.UID))
}

// stepFunc does one step for one VolumeAttachment.
type stepFunc func(ctx context.Context, va *storagev1.VolumeAttachment) (reconcile.Result, error)

// withVALock makes a reconcile function of a step: it runs while no other step works on the same VolumeAttachment, and only
// if the VolumeAttachment still needs that step.
func (c *Controller) withVALock(want step, do stepFunc) func(context.Context, string) (reconcile.Result, error) {
	return func(ctx context.Context, name string) (reconcile.Result, error) {
		if !c.busy.begin(name, want) {
			return reconcile.Result{}, nil // the worker that holds the VolumeAttachment re-queues it
		}
		defer c.release(name, want)
		va, ok := c.vas.Get("", name)
		if !ok || !c.ours(va) || c.step(va) != want {
			return reconcile.Result{}, nil
		}
		return do(ctx, va)
	}
}

// release unlocks the VolumeAttachment and re-queues it if it now needs the other step. It unlocks first: a worker that was
// turned away meanwhile has dropped its key.
func (c *Controller) release(name string, done step) {
	c.busy.end(name)
	if va, ok := c.vas.Get("", name); ok && c.ours(va) && c.step(va) != done {
		c.route(va)
	}
}
