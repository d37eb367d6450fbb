package controller

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/reconcile"
)

// detachOrRelease detaches, or only lets the object go if the driver knows no attaching.
func (c *Controller) detachOrRelease(ctx context.Context, va *storagev1.VolumeAttachment) (reconcile.Result, error) {
	ctx = withAttachment(ctx, va)
	if !c.cfg.Features().Publish {
		_, err := c.releaseVA(ctx, va)
		return reconcile.Result{}, err
	}
	source, err := c.detachSource(ctx, va)
	var plan detachPlan
	if err == nil {
		plan, err = c.planDetach(ctx, va, source)
	}
	if err == nil {
		err = c.unpublish(ctx, plan.unpublish)
	}
	if err != nil {
		return c.detachFailed(ctx, va, source, err)
	}
	klog.FromContext(ctx).V(2).Info("Volume is detached")
	return reconcile.Result{}, unlessGone(c.saveDetached(ctx, va, plan.vaPatch))
}

// saveDetached removes the finalizer. Usually that is the end of the object; if others keep it,
// it must not say attached any more.
func (c *Controller) saveDetached(ctx context.Context, va *storagev1.VolumeAttachment, patch []byte) error {
	if patch != nil {
		var err error
		if va, err = c.patchVA(ctx, va, patch); err != nil || isGone(va) {
			return err
		}
	}
	patch, err := detachedPatch(va)
	if err != nil || patch == nil {
		return err
	}
	return c.patchStatus(ctx, va, patch)
}

// unlessGone drops the error of a write to an object that is gone: there is nothing left to say.
func unlessGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// detachSource looks the volume up. It may be gone: what is needed to detach was
// recorded when it was attached.
func (c *Controller) detachSource(ctx context.Context, va *storagev1.VolumeAttachment) (source, error) {
	if pv, ok := c.pvs.Get("", pvName(va)); ok || va.Annotations[AnnotationVolumeHandle] != "" {
		source, _ := newSource(va, pv)
		return source, nil
	}
	source, err := c.findSource(ctx, va)
	if errors.Is(err, errSourceMissing) {
		return source, nil // the plan says what that means
	}
	return source, err
}

func (c *Controller) planDetach(ctx context.Context, va *storagev1.VolumeAttachment, source source) (detachPlan, error) {
	csiNode, _ := c.csiNodes.Get("", va.Spec.NodeName)
	nodeID := detachNodeID(csiNode, va)
	if nodeID == "" {
		var err error
		if nodeID, err = c.nodeAnnotation(ctx, va.Spec.NodeName); err != nil {
			return detachPlan{}, err
		}
	}
	plan, err := planDetach(detachInput{va: va, source: source, nodeID: nodeID, finalizer: c.finalizer})
	if err != nil {
		return detachPlan{}, err
	}
	plan.unpublish.Secrets, err = c.secret(ctx, plan.secret)
	return plan, err
}

func (c *Controller) unpublish(ctx context.Context, request *csi.ControllerUnpublishVolumeRequest) error {
	klog.FromContext(ctx).V(2).Info("Detaching volume", logging.KeyVolumeID, request.GetVolumeId(), logging.KeyNodeID, request.GetNodeId())
	ctx, cancel := c.csiDeadline(ctx)
	defer cancel()
	if _, err := c.cfg.CSI.ControllerUnpublishVolume(ctx, request); err != nil {
		return fmt.Errorf("detach volume %q from node ID %q: %w", request.GetVolumeId(), request.GetNodeId(), err)
	}
	return nil
}

// detachFailed tells everybody, and says when to try again.
func (c *Controller) detachFailed(
	ctx context.Context, va *storagev1.VolumeAttachment, source source, failure error,
) (reconcile.Result, error) {
	if isQuiet(failure) || ctx.Err() != nil {
		return reconcile.Result{}, failure
	}
	err := c.saveError(ctx, va, stepDetach, failure)
	c.report(va, source, ReasonDetachFailed, failure)
	if errors.Is(failure, errNodeUnknown) && err == nil {
		return reconcile.Result{After: c.cfg.NodeRetry}, nil
	}
	return reconcile.Result{}, errors.Join(failure, err)
}
