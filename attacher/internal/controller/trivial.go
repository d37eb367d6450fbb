package controller

import (
	"context"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// trivialStep decides for drivers without ControllerPublishVolume. Kubernetes does not know
// that there is nothing to attach, so the attacher says attached (seed 001,
// "Attaching and Detaching"). A finalizer can only come from an earlier
// version of the driver that did attach; nobody else would remove it.
func trivialStep(va *storagev1.VolumeAttachment, finalizer string) step {
	left := hasFinalizer(va, finalizer)
	switch {
	case isDeleting(va) && left:
		return stepDetach
	case isDeleting(va):
		return stepNone
	case left, !va.Status.Attached, va.Status.AttachError != nil:
		return stepAttach
	}
	return stepNone
}

// markAttached says attached without asking the driver.
func (c *Controller) markAttached(ctx context.Context, va *storagev1.VolumeAttachment) error {
	va, err := c.releaseVA(ctx, va)
	if err != nil || va == nil {
		return err
	}
	return c.saveAttached(ctx, va, va.Status.AttachmentMetadata)
}

// releaseVA removes the finalizer if it is there. The result is nil if the object is gone.
func (c *Controller) releaseVA(ctx context.Context, va *storagev1.VolumeAttachment) (*storagev1.VolumeAttachment, error) {
	patch, err := metadataPatch(va, withoutFinalizer(c.finalizer))
	if err != nil || patch == nil {
		return va, err
	}
	va, err = c.patchVA(ctx, va, patch)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // gone is what was wanted
	}
	return va, err
}
