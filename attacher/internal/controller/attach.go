package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/metrics"
	"github.com/longshore-csi/longshore/csikit/outcome"
	"github.com/longshore-csi/longshore/csikit/reconcile"
)

// attachOrMark attaches the volume, or just marks the VolumeAttachment attached when the driver never had
// ControllerPublishVolume.
func (c *Controller) attachOrMark(ctx context.Context, va *storagev1.VolumeAttachment) (reconcile.Result, error) {
	ctx = withAttachment(ctx, va)
	if !c.features().Publish && !c.attaches.Load() {
		return reconcile.Result{}, c.markAttached(ctx, va)
	}
	source, err := c.findSource(ctx, va)
	if err == nil {
		ctx = metrics.WithMigrated(ctx, source.migrated)
		va, err = c.attach(ctx, va, source)
	}
	if err != nil {
		return c.attachFailed(ctx, va, source, err)
	}
	c.forced.Delete(va.UID)
	return reconcile.Result{}, nil
}

// attach carries out the plan. It returns va as it is after the writes, also when a later step failed.
func (c *Controller) attach(ctx context.Context, va *storagev1.VolumeAttachment, source source) (*storagev1.VolumeAttachment, error) {
	if err := c.AttachLost(); err != nil {
		return va, err
	}
	nodeID, err := c.attachNodeID(ctx, va)
	if err != nil {
		return va, err
	}
	recorded, err := c.recordedNodeID(va)
	if err != nil {
		klog.FromContext(ctx).Error(err, "The record of an earlier attempt is not used")
	}
	plan, err := planAttach(attachInput{
		va: va, source: source, nodeID: nodeID, recorded: recorded, finalizer: c.finalizer,
		features: c.features(), fsType: c.cfg.DefaultFSType,
	})
	if err != nil {
		return va, err
	}
	plan.publish.Secrets, err = c.secret(ctx, plan.secret)
	if err != nil {
		return va, err
	}
	if va, err = c.prepareAttach(ctx, va, source.pv, plan); err != nil {
		return va, err
	}
	metadata, err := c.publish(ctx, plan.publish)
	if err != nil {
		return va, err
	}
	if c.isAbandoned(va) {
		c.undo(ctx, va, plan.publish)
		return va, nil
	}
	return va, c.saveAttached(ctx, va, metadata)
}

// isAbandoned reports whether va was removed by force, so that no VolumeAttachment would have its volume detached from the node.
func (c *Controller) isAbandoned(va *storagev1.VolumeAttachment) bool {
	if now, ok := c.vas.Get("", va.Name); ok && now.UID == va.UID {
		return false
	}
	return !c.otherOn(va.Spec.NodeName, va)
}

// undo detaches a volume whose VolumeAttachment is gone.
func (c *Controller) undo(ctx context.Context, va *storagev1.VolumeAttachment, published *csi.ControllerPublishVolumeRequest) {
	klog.FromContext(ctx).Info("The VolumeAttachment was removed by force while the volume was being attached, detaching it", logging.KeyVolumeID, published.GetVolumeId(), logging.KeyNodeID, published.GetNodeId())
	err := c.unpublish(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: published.GetVolumeId(), NodeId: published.GetNodeId(), Secrets: published.GetSecrets()})
	if err != nil {
		klog.FromContext(ctx).Error(err, "The volume stays attached, and no VolumeAttachment says so: detach it by the storage's own means")
		c.cfg.Events.Warning(va, ReasonDetachFailed, outcome.Text(err))
	}
}

// prepareAttach undoes a stale publish, and writes finalizers and annotations so that the publish call can be undone later, to both
// objects at the same time.
func (c *Controller) prepareAttach(
	ctx context.Context, va *storagev1.VolumeAttachment, pv *corev1.PersistentVolume, plan attachPlan,
) (*storagev1.VolumeAttachment, error) {
	if plan.stale != nil {
		plan.stale.Secrets = plan.publish.GetSecrets()
		if err := c.unpublish(ctx, plan.stale); err != nil && !isUnknownNode(err) {
			return va, err
		}
	}
	var writes errgroup.Group
	if plan.pvPatch != nil {
		writes.Go(func() error { return c.patchPV(ctx, pv, plan.pvPatch) })
	}
	if plan.vaPatch != nil {
		patched, err := c.patchVA(ctx, va, plan.vaPatch)
		if err != nil {
			return va, cmp.Or(err, writes.Wait())
		}
		va = patched
	}
	return va, writes.Wait()
}

func (c *Controller) publish(ctx context.Context, request *csi.ControllerPublishVolumeRequest) (map[string]string, error) {
	klog.FromContext(ctx).V(2).Info("Attaching volume", logging.KeyVolumeID, request.GetVolumeId(), logging.KeyNodeID, request.GetNodeId())
	ctx, cancel := c.csiDeadline(ctx)
	defer cancel()
	response, err := c.cfg.CSI.ControllerPublishVolume(ctx, request)
	if err != nil {
		return nil, fmt.Errorf("attach volume %q to node ID %q: %w", request.GetVolumeId(), request.GetNodeId(), err)
	}
	metadata := response.GetPublishContext()
	return metadata, checkMetadata(metadata)
}

// saveAttached writes the outcome, unless the object is to be detached already:
// then "attached" must not be relied on any more (seed 001, "Attaching and Detaching").
func (c *Controller) saveAttached(ctx context.Context, va *storagev1.VolumeAttachment, metadata map[string]string) error {
	if c.outdated(va) {
		return nil
	}
	patch, err := attachedPatch(va, metadata)
	if err != nil || patch == nil {
		return err
	}
	klog.FromContext(ctx).V(2).Info("Volume is attached")
	return c.patchStatus(ctx, va, patch)
}

// attachFailed reports the failure in the status and as events, and decides when to retry.
func (c *Controller) attachFailed(
	ctx context.Context, va *storagev1.VolumeAttachment, source source, failure error,
) (reconcile.Result, error) {
	if kube.IsTransient(failure) || ctx.Err() != nil {
		return reconcile.Result{}, failure
	}
	if errors.Is(failure, kube.ErrGone) { // the retry after a conflict is fast, and reads the newer cache
		return reconcile.Result{}, apierrors.NewConflict(storagev1.Resource("volumeattachments"), va.Name, failure)
	}
	if c.outdated(va) {
		klog.FromContext(ctx).V(2).Info("Attaching ended with an error, volume is detached next", logging.KeyReason, failure.Error())
		return reconcile.Result{}, nil
	}
	err := c.saveError(ctx, va, stepAttach, failure)
	c.warn(va, source, ReasonAttachFailed, fmt.Sprintf("attach to node %q: %s", va.Spec.NodeName, outcome.Text(failure)))
	if err == nil && isAwaited(failure) {
		klog.FromContext(ctx).V(2).Info("Waiting for the driver", logging.KeyReason, failure.Error())
		return c.waitForDriver(va), nil
	}
	return reconcile.Result{}, errors.Join(failure, err)
}

// saveError writes attachError or detachError if more than its time changes.
func (c *Controller) saveError(ctx context.Context, va *storagev1.VolumeAttachment, during step, failure error) error {
	patch, err := errorPatch(va, during, volumeError(failure, time.Now(), c.cfg.ErrorCode))
	if err != nil || patch == nil {
		return err
	}
	return ignoreNotFound(c.patchStatus(ctx, va, patch))
}

// warn records an event on the VolumeAttachment and on the claim.
func (c *Controller) warn(va *storagev1.VolumeAttachment, source source, reason, text string) {
	c.cfg.Events.Warning(va, reason, text)
	if claim := source.claim(); claim != nil {
		c.cfg.Events.Warning(claim, reason, text)
	}
}

// outdated reports whether va has been deleted, or replaced, since it was read.
func (c *Controller) outdated(va *storagev1.VolumeAttachment) bool {
	now, ok := c.vas.Get("", va.Name)
	return !ok || now.UID != va.UID || isDeleting(now)
}

// findSource finds the volume, and translates one of an in-tree plugin unless the cache has done that.
func (c *Controller) findSource(ctx context.Context, va *storagev1.VolumeAttachment) (source, error) {
	pv, err := c.findPV(ctx, pvName(va))
	if err != nil {
		return source{}, err
	}
	pv, err = translate(c.cfg.Driver, pv)
	found, sourceErr := newSource(va, pv)
	return found, cmp.Or(err, sourceErr)
}

// findPV finds a PersistentVolume in the cache, or reads it from the server: one that is new, or of which the cache keeps little, as it is
// not of the driver. nil: there is none of that name.
func (c *Controller) findPV(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	if name == "" {
		return nil, nil //nolint:nilnil // an inline volume has none
	}
	if pv, ok := c.pvs.Get("", name); ok && pv.Spec.CSI != nil && pv.Spec.CSI.Driver == c.cfg.Driver {
		return pv, nil
	}
	ctx, cancel := c.kubeDeadline(ctx)
	defer cancel()
	pv, err := c.cfg.Kube.PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // its absence is an answer
	case err != nil:
		return nil, lookupError("PersistentVolume", name, err)
	}
	return pv, nil
}

// attachNodeID returns the node ID to publish to, "" if it is unknown. That of an earlier attempt does not count: another machine may get the node's name.
func (c *Controller) attachNodeID(ctx context.Context, va *storagev1.VolumeAttachment) (string, error) {
	csiNode, _ := c.csiNodes.Get("", va.Spec.NodeName)
	if id := csiNodeID(csiNode, va.Spec.Attacher); id != "" {
		return id, nil
	}
	return c.nodeAnnotation(ctx, va.Spec.NodeName)
}

// nodeAnnotation reads the annotation of the Node, unless a recent lookup had no result. It is the last resort, so Nodes
// are neither watched nor required to be readable: the role of the external-attacher lacks the right.
func (c *Controller) nodeAnnotation(ctx context.Context, name string) (string, error) {
	if c.nodes.wait(name, time.Now()) > 0 {
		return "", nil
	}
	ctx, cancel := c.kubeDeadline(ctx)
	defer cancel()
	node, err := c.cfg.Kube.Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsForbidden(err):
		klog.FromContext(ctx).V(2).Info("Nodes may not be read, node IDs come from CSINodes only", logging.KeyReason, err.Error())
		c.nodes.refused(time.Now())
		return "", nil
	case apierrors.IsNotFound(err):
		c.nodes.missed(name, time.Now())
		return "", nil
	case err != nil:
		return "", lookupError("Node", name, err)
	}
	id, err := annotatedNodeID(node, c.cfg.Driver)
	if err == nil && id == "" {
		c.nodes.missed(name, time.Now())
		return "", nil
	}
	c.nodes.forget(name)
	return id, err
}

// waitForDriver returns the pause until the node ID is looked up again.
func (c *Controller) waitForDriver(va *storagev1.VolumeAttachment) reconcile.Result {
	return reconcile.Result{After: max(c.cfg.NodeRetry, c.nodes.wait(va.Spec.NodeName, time.Now()))}
}

func (c *Controller) secret(ctx context.Context, ref *corev1.SecretReference) (map[string]string, error) {
	ctx, cancel := c.kubeDeadline(ctx)
	defer cancel()
	return c.cfg.Secrets.Data(ctx, ref)
}

func withAttachment(ctx context.Context, va *storagev1.VolumeAttachment) context.Context {
	logger := klog.FromContext(ctx).WithValues(logging.KeyAttachment, va.Name, logging.KeyNode, va.Spec.NodeName)
	if name := pvName(va); name != "" {
		logger = logger.WithValues(logging.KeyVolume, name)
	}
	return klog.NewContext(ctx, logger)
}
