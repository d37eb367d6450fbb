package controller

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/metrics"
	"github.com/longshore-csi/longshore/csikit/outcome"
	"github.com/longshore-csi/longshore/csikit/reconcile"
)

// detach detaches the volume and releases the VolumeAttachment.
func (c *Controller) detach(ctx context.Context, va *storagev1.VolumeAttachment) (reconcile.Result, error) {
	ctx = withAttachment(ctx, va)
	source, err := c.detachSource(ctx, va)
	ctx = metrics.WithMigrated(ctx, source.migrated)
	var plan detachPlan
	if err == nil {
		plan, err = c.planDetach(ctx, va, source)
	}
	if err == nil {
		err = c.unpublishFirstKnown(ctx, plan.unpublish)
	}
	if err != nil {
		return c.detachFailed(ctx, va, source, err)
	}
	klog.FromContext(ctx).V(2).Info("Volume is detached")
	return reconcile.Result{}, ignoreNotFound(c.saveDetached(ctx, va, plan.vaPatch))
}

// saveDetached removes the finalizer, and usually with it the object. If finalizers of others keep the object, its status
// becomes detached.
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

// ignoreNotFound drops the error of a write to an object that is gone.
func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// detachSource finds the volume. It may be gone: the VolumeAttachment recorded what detaching needs.
func (c *Controller) detachSource(ctx context.Context, va *storagev1.VolumeAttachment) (source, error) {
	source, err := c.findSource(ctx, va)
	recorded := va.Annotations[AnnotationVolumeHandle] != ""
	if errors.Is(err, errSourceMissing) || recorded && errors.Is(err, errSourceUnusable) {
		return source, nil // the plan says what that means
	}
	return source, err
}

func (c *Controller) planDetach(ctx context.Context, va *storagev1.VolumeAttachment, source source) (detachPlan, error) {
	if err := c.AttachLost(); err != nil {
		return detachPlan{}, err
	}
	csiNode, _ := c.csiNodes.Get("", va.Spec.NodeName)
	recorded, err := c.recordedNodeID(va)
	nodeIDs := detachNodeIDs(recorded, csiNodeID(csiNode, c.cfg.Driver))
	if err != nil && len(nodeIDs) == 0 {
		return detachPlan{}, err
	}
	if len(nodeIDs) == 0 {
		id, err := c.nodeAnnotation(ctx, va.Spec.NodeName)
		if err != nil {
			return detachPlan{}, err
		}
		if id != "" {
			nodeIDs = []string{id}
		}
	}
	plan, err := planDetach(detachInput{va: va, source: source, nodeIDs: nodeIDs, finalizer: c.finalizer})
	if err != nil {
		return detachPlan{}, err
	}
	secrets, err := c.secret(ctx, plan.secret)
	for _, request := range plan.unpublish {
		request.Secrets = secrets
	}
	return plan, err
}

// unpublishFirstKnown sends the requests up to the first whose node the driver knows.
func (c *Controller) unpublishFirstKnown(ctx context.Context, requests []*csi.ControllerUnpublishVolumeRequest) error {
	var err error
	for _, request := range requests {
		if err = c.unpublish(ctx, request); !isUnknownNode(err) {
			return err
		}
		klog.FromContext(ctx).V(2).Info("Driver does not know the node ID", logging.KeyNodeID, request.GetNodeId(), logging.KeyReason, err.Error())
	}
	return err
}

// isUnknownNode reports whether the driver may not know the node ID that it was given: NOT_FOUND by the specification
// (CSI v1.13, "ControllerUnpublishVolume"), INVALID_ARGUMENT where the ID has another format.
func isUnknownNode(err error) bool {
	code := outcome.Code(err)
	return code == codes.NotFound || code == codes.InvalidArgument
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

// detachFailed reports the failure in the status and as events, and decides when to retry.
func (c *Controller) detachFailed(
	ctx context.Context, va *storagev1.VolumeAttachment, source source, failure error,
) (reconcile.Result, error) {
	if kube.IsTransient(failure) || ctx.Err() != nil {
		return reconcile.Result{}, failure
	}
	err := c.saveError(ctx, va, stepDetach, failure)
	c.warn(va, source, ReasonDetachFailed, fmt.Sprintf("detach from node %q: %s; the volume stays attached until a later try succeeds", va.Spec.NodeName, outcome.Text(failure)))
	if err == nil && isAwaited(failure) {
		return c.waitForDriver(va), nil
	}
	return reconcile.Result{}, errors.Join(failure, err)
}
