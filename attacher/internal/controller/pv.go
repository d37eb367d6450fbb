package controller

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/reconcile"
)

// isReleasable reports whether the attacher's finalizer has to leave pv once no VolumeAttachment refers to pv: it is deleted, or the
// in-tree plugin serves it again.
func isReleasable(driver string, pv *corev1.PersistentVolume) bool {
	return (isDeleting(pv) || isRolledBack(driver, pv)) && hasFinalizer(pv, FinalizerName(driver))
}

// reconcilePV removes the finalizer of a releasable PersistentVolume that is detached from all nodes. If a deleted one is still
// attached, the VolumeAttachments get the record of the volume: users may remove the finalizer by force.
func (c *Controller) reconcilePV(ctx context.Context, name string) (reconcile.Result, error) {
	pv, ok := c.pvs.Get("", name)
	if !ok || !isReleasable(c.cfg.Driver, pv) {
		return reconcile.Result{}, nil
	}
	if attachments := c.vas.ByIndex(indexPV, name); len(attachments) > 0 {
		return reconcile.Result{}, c.recordVolume(ctx, pv, attachments)
	}
	patch, err := metadataPatch(pv, withoutFinalizer(c.finalizer))
	if err != nil {
		return reconcile.Result{}, err
	}
	klog.FromContext(ctx).V(2).Info("Releasing detached volume", logging.KeyVolume, name)
	return reconcile.Result{}, ignoreNotFound(c.patchPV(ctx, pv, patch))
}

// recordVolume adds the record of the volume to those VolumeAttachments that lack it.
func (c *Controller) recordVolume(ctx context.Context, pv *corev1.PersistentVolume, attachments []*storagev1.VolumeAttachment) error {
	errs := make([]error, 0, len(attachments))
	for _, va := range attachments {
		patch, err := planRecord(va, pv, c.finalizer)
		if err == nil && patch != nil {
			klog.FromContext(ctx).V(2).Info("Recording deleted volume", logging.KeyAttachment, va.Name, logging.KeyVolume, pv.Name)
			_, err = c.patchVA(ctx, va, patch)
		}
		errs = append(errs, ignoreNotFound(err))
	}
	return errors.Join(errs...)
}

// patchPV applies a patch to the PersistentVolume that pv was read from.
func (c *Controller) patchPV(ctx context.Context, pv *corev1.PersistentVolume, patch []byte) error {
	ctx, cancel := c.kubeDeadline(ctx)
	defer cancel()
	patched, err := c.cfg.Kube.PersistentVolumes().Patch(ctx, pv.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return kube.PatchError("PersistentVolume", pv.Name, err)
	}
	c.pvs.Remember(patched)
	return nil
}

// patchVA applies a patch of the metadata to the VolumeAttachment that va was read from.
func (c *Controller) patchVA(ctx context.Context, va *storagev1.VolumeAttachment, patch []byte) (*storagev1.VolumeAttachment, error) {
	return c.writeVA(ctx, va, types.StrategicMergePatchType, patch)
}

// patchStatus applies a patch to the status of the VolumeAttachment that va was read from.
func (c *Controller) patchStatus(ctx context.Context, va *storagev1.VolumeAttachment, patch []byte) error {
	_, err := c.writeVA(ctx, va, types.JSONPatchType, patch, "status")
	return err
}

func (c *Controller) writeVA(
	ctx context.Context, va *storagev1.VolumeAttachment, kind types.PatchType, patch []byte, subresources ...string,
) (*storagev1.VolumeAttachment, error) {
	ctx, cancel := c.kubeDeadline(ctx)
	defer cancel()
	patched, err := c.cfg.Kube.VolumeAttachments().Patch(ctx, va.Name, kind, patch, metav1.PatchOptions{}, subresources...)
	if err != nil {
		return nil, kube.PatchError("VolumeAttachment", va.Name, err)
	}
	c.vas.Remember(patched)
	return patched, nil
}

// isGone reports whether the write that returned obj was its last: it removed the last
// finalizer of a deleted object.
func isGone(obj metav1.Object) bool {
	return isDeleting(obj) && len(obj.GetFinalizers()) == 0
}
