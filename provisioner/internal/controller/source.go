package controller

import (
	"context"
	"fmt"
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/provisioner/internal/backend"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapi"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
	"github.com/longshore-csi/longshore/topology"
)

// A source is kept by a finalizer from before CreateVolume until no claim needs the source any more. The worker that adds or
// removes the finalizer has the lock of the source alone, so that no other worker begins to need a source whose finalizer is
// being removed. Those that need one which has the finalizer share the lock.

// source returns what the volume of a claim is filled with, which is kept from now on, unless place has an error for from where it is accessible;
// nil for an empty volume.
func (c *Controller) source(ctx context.Context, claim *corev1.PersistentVolumeClaim, place func([]topology.Segment) error) (*volume.Source, error) {
	ref, ok := view.SourceOf(claim)
	if !ok {
		return nil, nil //nolint:nilnil // no source means an empty volume, which is not an error
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Settings.KubeTimeout)
	defer cancel()
	unlock, err := c.lockSource(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer unlock()
	found, err := c.validateSource(ctx, claim, ref)
	if err != nil {
		return nil, err
	}
	accessible, err := found.accessible()
	if err == nil {
		err = place(accessible)
	}
	if err != nil {
		return nil, fmt.Errorf("use %s as source: %w", ref, err)
	}
	c.claimRecords.Change(claim.UID, func(r *claimRecord) { r.source = ref })
	if err := c.protectOrigin(ctx, found); err != nil {
		return nil, fmt.Errorf("protect %s, the source of the volume: %w", ref, err)
	}
	return &volume.Source{Ref: ref, Content: found.source()}, nil
}

// lockSource gives a source that has the finalizer to all who need it, and one that has not to one of them, which puts it on.
func (c *Controller) lockSource(ctx context.Context, ref volume.SourceRef) (unlock func(), err error) {
	if !c.knownKept(ref) {
		unlock, err := c.locks.Lock(ctx, ref)
		if err != nil || !c.knownKept(ref) {
			return unlock, err
		}
		unlock() // the one before has put it on
	}
	return c.locks.RLock(ctx, ref)
}

// knownKept reports whether a source has the finalizer as far as the caches know.
func (c *Controller) knownKept(ref volume.SourceRef) bool {
	var found origin
	if ref.Kind == view.KindClaim {
		found.claim, _ = c.view.Claims.Get(ref.Namespace, ref.Name)
	} else if c.view.Snapshots != nil {
		found.snapshot, _ = c.view.Snapshots.Get(ref.Namespace, ref.Name)
	}
	return (found.claim != nil || found.snapshot != nil) && found.kept()
}

// mayUseSource says why a claim may not use its source, nil if it may or has none.
func (c *Controller) mayUseSource(claim *corev1.PersistentVolumeClaim) error {
	ref, ok := view.SourceOf(claim)
	if !ok || ref.Namespace == claim.Namespace {
		return nil
	}
	access := sourceAccess{enabled: c.view.Grants != nil}
	if access.enabled {
		access.grants, access.unknown = c.view.GrantsIn(ref.Namespace)
	}
	return access.check(claim.Namespace, ref)
}

// validateSource reads a source, and returns what speaks against it.
func (c *Controller) validateSource(ctx context.Context, claim *corev1.PersistentVolumeClaim, ref volume.SourceRef) (origin, error) {
	found, err := c.read(ctx, ref)
	if err != nil {
		return origin{}, err
	}
	w := sourceCheck{
		driver: c.driver, claim: claim, begun: c.claimRecords.Get(claim.UID).source != volume.SourceRef{},
		convert: c.cfg.Settings.ModeConversion, node: c.node(),
	}
	if err := w.check(found); err != nil {
		return origin{}, fmt.Errorf("use %s as source: %w", ref, err)
	}
	return found, nil
}

// read reads a source and what is behind it from the server, for the caches keep little of it.
func (c *Controller) read(ctx context.Context, ref volume.SourceRef) (origin, error) {
	if ref.Kind == view.KindClaim {
		return c.readClaim(ctx, ref)
	}
	return c.readSnapshot(ctx, ref)
}

// readClaim reads a claim and its volume.
func (c *Controller) readClaim(ctx context.Context, ref volume.SourceRef) (origin, error) {
	claim, err := c.cfg.Kube.PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return origin{}, fmt.Errorf("get %s, the source: %w", ref, err)
	}
	found := origin{claim: claim}
	if claim.Spec.VolumeName == "" {
		return found, nil
	}
	pv, err := c.cfg.Kube.PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	switch {
	case err == nil:
		found.volume = c.inCSIForm(pv)
	case !apierrors.IsNotFound(err):
		return origin{}, fmt.Errorf("get PersistentVolume %q of %s, the source: %w", claim.Spec.VolumeName, ref, err)
	}
	return found, nil
}

// readSnapshot reads a snapshot and its content.
func (c *Controller) readSnapshot(ctx context.Context, ref volume.SourceRef) (origin, error) {
	snapshot, err := c.cfg.Kube.VolumeSnapshots(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case snapshotapi.IsAbsent(err):
		return origin{}, fmt.Errorf("get %s, the source: this cluster has no snapshots, the CustomResourceDefinitions of %s are not installed: %w",
			ref, snapshotv1.GroupName, err)
	case err != nil:
		return origin{}, fmt.Errorf("get %s, the source: %w", ref, err)
	}
	found := origin{snapshot: snapshot}
	name := view.ContentName(snapshot)
	if name == "" {
		return found, nil
	}
	content, err := c.cfg.Kube.VolumeSnapshotContents().Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil:
		found.content = content
	case !apierrors.IsNotFound(err):
		return origin{}, fmt.Errorf("get VolumeSnapshotContent %q of %s, the source: %w", name, ref, err)
	}
	return found, nil
}

// protectOrigin puts the finalizer on a source. Permissions from before there was one for snapshots do not allow that: then
// nothing keeps the snapshot, as nothing did before.
func (c *Controller) protectOrigin(ctx context.Context, found origin) error {
	if found.kept() {
		return nil
	}
	found.object().SetFinalizers(append(found.object().GetFinalizers(), found.finalizer()))
	err := c.writeOrigin(ctx, found)
	if found.snapshot != nil && apierrors.IsForbidden(err) {
		klog.FromContext(ctx).Info("Snapshot is not protected while a volume is made from it", logging.KeyReason, backend.Describe(err))
		return nil
	}
	return err
}

// writeOrigin stores the object of a source. It is written as a whole: the permissions that provisioners have always had allow
// updates of claims and snapshots, and no patches.
func (c *Controller) writeOrigin(ctx context.Context, found origin) error {
	if found.claim != nil {
		updated, err := c.cfg.Kube.PersistentVolumeClaims(found.claim.Namespace).Update(ctx, found.claim, metav1.UpdateOptions{})
		if err == nil {
			c.view.Claims.Remember(updated)
		}
		return err
	}
	updated, err := c.cfg.Kube.VolumeSnapshots(found.snapshot.Namespace).Update(ctx, found.snapshot, metav1.UpdateOptions{})
	if err == nil && c.view.Snapshots != nil {
		c.view.Snapshots.Remember(updated)
	}
	return err
}

// reconcileSource removes the finalizer from a source that no claim needs any more.
func (c *Controller) reconcileSource(ctx context.Context, ref volume.SourceRef) (reconcile.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Settings.KubeTimeout)
	defer cancel()
	unlock, err := c.locks.Lock(ctx, ref)
	if err != nil {
		return reconcile.Result{}, err
	}
	defer unlock()
	if c.needed(ref) {
		return reconcile.Result{}, nil
	}
	found, err := c.read(ctx, ref)
	switch {
	case apierrors.IsNotFound(err):
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, err
	case !found.kept() || !found.isFor(c.driver) || !canUse(c.node(), found):
		return reconcile.Result{}, nil
	}
	object := found.object()
	object.SetFinalizers(slices.DeleteFunc(object.GetFinalizers(), func(name string) bool { return name == found.finalizer() }))
	if err := c.writeOrigin(ctx, found); err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, fmt.Errorf("take finalizer %s off %s: %w", found.finalizer(), ref, err)
	}
	klog.FromContext(ctx).V(2).Info("Source is free", logging.KeyObject, ref.String())
	return reconcile.Result{}, nil
}

// needed reports whether a volume may be in creation from a source: one is, as far as this process knows, a claim that it has
// begun to serve or found at its start waits for one, or another node has its hand on such a claim and has begun, or may begin, to serve it.
func (c *Controller) needed(ref volume.SourceRef) bool {
	if len(c.claimRecords.Matching(func(r claimRecord) bool { return r.source == ref })) > 0 {
		return true
	}
	for _, intent := range c.cfg.Journal.List() {
		if source := intent.Spec.Source; source != nil && source.Ref == ref {
			return true
		}
	}
	return slices.ContainsFunc(c.view.ClaimsFrom(ref), func(claim *corev1.PersistentVolumeClaim) bool {
		return c.node().AssignedElsewhere(claim) != "" && c.mayUseSource(claim) == nil
	})
}

// dropSourceOf frees the source of a claim that may not use it, or not any more, unless its volume is in progress: anyone who creates such
// a claim could hold up the deletion of the source.
func (c *Controller) dropSourceOf(s claimState) {
	if s.claim == nil || s.intent != nil || c.mayUseSource(s.claim) == nil {
		return
	}
	before, _ := c.claimRecords.Change(s.claim.UID, func(r *claimRecord) { r.source = volume.SourceRef{} })
	if before.source != (volume.SourceRef{}) {
		c.sources.Add(before.source)
	}
}

// wantsElsewhere returns the source of a claim that another node has its hand on.
func (c *Controller) wantsElsewhere(claim *corev1.PersistentVolumeClaim) (ref volume.SourceRef, ok bool) {
	if claim == nil || !view.Pending(claim, c.driver) || c.node().AssignedElsewhere(claim) == "" {
		return volume.SourceRef{}, false
	}
	return view.SourceOf(claim)
}

// sourceElsewhereFree looks at a source that was kept for a claim of another node, once that needs it no more. Only the nodes
// that have the volume look at a claim; snapshots, of which that is not in the cache, are left to the sweep.
func (c *Controller) sourceElsewhereFree(before, after *corev1.PersistentVolumeClaim) {
	ref, wanted := c.wantsElsewhere(before)
	if _, still := c.wantsElsewhere(after); !wanted || still || ref.Kind != view.KindClaim {
		return
	}
	source, ok := c.view.Claims.Get(ref.Namespace, ref.Name)
	if !ok || !slices.Contains(source.Finalizers, view.FinalizerClone) {
		return
	}
	if pv, ok := c.view.Volumes.Get("", source.Spec.VolumeName); ok && pv.Spec.CSI != nil {
		c.sources.Add(ref)
	}
}

// sourceChanged looks at the claims that wait for a source.
func (c *Controller) sourceChanged(ref volume.SourceRef) {
	c.enqueueWaiting(c.view.ClaimsFrom(ref))
}

// grantChanged looks at the claims that wait for a ReferenceGrant, or must not use their source any more.
func (c *Controller) grantChanged(before, after *kubeapi.ReferenceGrant) {
	if after == nil {
		after = before
	}
	c.enqueueWaiting(c.view.ClaimsFromNamespace(after.Namespace))
}

// enqueueWaiting looks at claims that wait for their source. Those with a volume in progress do not, for its request is repeated as it was, unless
// another process has made it: it may be the claim that has to be asked about then.
func (c *Controller) enqueueWaiting(claims []*corev1.PersistentVolumeClaim) {
	for _, claim := range claims {
		if intent, open := c.cfg.Journal.Get(claim.UID); (!open || intent.Recovered) && c.concerns(claim) {
			c.claims.Wake(keyOf(claim))
		}
	}
}

// claimAsSource looks at a claim as the source of others: whether it is fit now, and whether it is to be freed.
func (c *Controller) claimAsSource(before, after *corev1.PersistentVolumeClaim) {
	if after == nil {
		return
	}
	ref := volume.SourceRef{Kind: view.KindClaim, Namespace: after.Namespace, Name: after.Name}
	if before == nil || before.UID != after.UID || before.Spec.VolumeName != after.Spec.VolumeName || before.Status.Phase != after.Status.Phase {
		c.sourceChanged(ref)
	}
	if slices.Contains(after.Finalizers, view.FinalizerClone) {
		c.sources.Add(ref)
	}
}

// snapshotChanged does the same for a snapshot.
func (c *Controller) snapshotChanged(before, after *snapshotv1.VolumeSnapshot) {
	if after == nil {
		return
	}
	ref := volume.SourceRef{Kind: view.KindSnapshot, Namespace: after.Namespace, Name: after.Name}
	if before == nil || before.UID != after.UID || view.ContentName(before) != view.ContentName(after) || view.Ready(before) != view.Ready(after) {
		c.sourceChanged(ref)
	}
	if slices.Contains(after.Finalizers, view.FinalizerRestore) {
		c.sources.Add(ref)
	}
}
