package controller

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

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

// inputs is what the work on a VolumeAttachment depends on: neither its status, where the attacher writes the error that the backoff follows, nor its
// finalizer and annotations. Changes of its PersistentVolume and of its node wake it.
type inputs struct {
	uid      types.UID
	deleting bool
}

func inputsOf(va *storagev1.VolumeAttachment) inputs {
	return inputs{uid: va.UID, deleting: isDeleting(va)}
}

func (c *Controller) inputs(name string) any {
	va, ok := c.vas.Get("", name)
	if !ok {
		return inputs{}
	}
	return inputsOf(va)
}

func (c *Controller) vaChanged(before, after *storagev1.VolumeAttachment) {
	if before != nil && (after == nil || after.UID != before.UID) {
		c.vaGone(before)
	}
	if after == nil {
		return
	}
	c.noteVA(after)
	if c.ours(after) && c.step(after) != stepNone {
		c.vaQueue.Add(after.Name)
	}
}

// vaGone drops the state of va, and queues its PersistentVolume, whose finalizer may now be removed.
func (c *Controller) vaGone(va *storagev1.VolumeAttachment) {
	c.forced.Delete(va.UID)
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
	if c.step(va) != stepNone {
		c.vaQueue.Wake(va.Name)
	}
}

// step decides what va needs next.
func (c *Controller) step(va *storagev1.VolumeAttachment) step {
	_, forced := c.forced.Load(va.UID)
	return nextStep(va, c.finalizer, forced)
}

// class lets attaching and detaching have workers of their own, and the nodes share these.
func (c *Controller) class(name string) reconcile.Class {
	va, ok := c.vas.Get("", name)
	if !ok {
		return reconcile.Class{}
	}
	return reconcile.Class{Pool: c.step(va).String(), Group: va.Spec.NodeName}
}

// reconcileVA does what the VolumeAttachment needs next.
func (c *Controller) reconcileVA(ctx context.Context, name string) (reconcile.Result, error) {
	va, ok := c.vas.Get("", name)
	if !ok || !c.ours(va) {
		return reconcile.Result{}, nil
	}
	switch c.step(va) {
	case stepAttach:
		return c.attachOrMark(ctx, va)
	case stepDetach:
		return c.detach(ctx, va)
	default:
		return reconcile.Result{}, nil
	}
}
