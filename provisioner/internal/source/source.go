// Package source keeps what volumes are made from: claims that are cloned, and snapshots that are restored. It reads a source, checks whether it is fit for a claim,
// and holds it by a finalizer from before CreateVolume until no claim needs it any more. The decisions are pure functions in check.go.
package source

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/keymutex"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/migration"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/provisioner/internal/backend"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapi"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
	"github.com/longshore-csi/longshore/topology"
)

// Config is what a Keeper works with. All fields are required but Plugin, Queues and Ages.
type Config struct {
	// Driver is the name of the driver, and Node the node that is provisioned for; the zero value: all.
	Driver string
	Node   view.Node
	// Kube is the API, and View what is known of it.
	Kube kubeapi.Client
	View *view.View
	// Plugin is the in-tree plugin that the driver replaces; the zero value: none.
	Plugin migration.Plugin
	// ModeConversion allows all snapshots to be restored in another volume mode.
	ModeConversion bool
	// InUse reports whether this process may be making a volume from a source.
	InUse func(ref volume.SourceRef) bool
	// Changed is called with claims whose source, or the permission to use it, has changed.
	Changed func(claims []*corev1.PersistentVolumeClaim)
	// Workers is the number of sources that are freed concurrently, and Retry how failed work is repeated.
	Workers int
	Retry   flagset.Retry
	// KubeTimeout is the deadline of one request to the API server, and Drain how long running work may take at the end.
	KubeTimeout, Drain time.Duration
	// Queues measures the queue, and Ages the age of its oldest key; nil does not.
	Queues workqueue.MetricsProvider
	Ages   prometheus.Registerer
}

// Keeper looks after the sources of the volumes of one driver.
//
// The worker that adds or removes the finalizer has the lock of the source alone, so that no other worker begins to need a source whose finalizer is being removed.
// Those that need one which has the finalizer share the lock.
type Keeper struct {
	cfg   Config
	queue *reconcile.Controller[volume.SourceRef]
	locks keymutex.Locks[volume.SourceRef]
}

// New returns a keeper without work.
func New(cfg Config) (k *Keeper, err error) {
	k = &Keeper{cfg: cfg}
	k.queue, err = reconcile.New(reconcile.Config[volume.SourceRef]{
		Name: "sources", Reconcile: k.reconcile, Workers: cfg.Workers, Retry: cfg.Retry, Drain: cfg.Drain, Metrics: cfg.Queues, Registerer: cfg.Ages,
	})
	if err != nil {
		return nil, fmt.Errorf("make queue of sources: %w", err)
	}
	return k, nil
}

// Run frees sources until ctx ends. It may be called once.
func (k *Keeper) Run(ctx context.Context) error { return k.queue.Run(ctx) }

// State returns what /debug/state shows of the queue.
func (k *Keeper) State() reconcile.State { return k.queue.State() }

// Free looks whether a source is needed any more.
func (k *Keeper) Free(ref volume.SourceRef) { k.queue.Add(ref) }

// Keep returns what the volume of a claim is made from, nil for an empty volume. The source is kept from the moment that begin has returned nil, which is called with
// the places from where the source is accessible; none: from everywhere. From then on, Config.InUse must report that it is in use. begun says that the volume may
// have been asked for before.
func (k *Keeper) Keep(ctx context.Context, claim *corev1.PersistentVolumeClaim, begun bool, begin func(ref volume.SourceRef, accessible []topology.Segment) error) (*volume.Source, error) {
	ref, ok := view.SourceOf(claim)
	if !ok {
		return nil, nil //nolint:nilnil // no source means an empty volume, which is not an error
	}
	ctx, cancel := context.WithTimeout(ctx, k.cfg.KubeTimeout)
	defer cancel()
	unlock, err := k.lock(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer unlock()
	found, err := k.validate(ctx, claim, ref, begun)
	if err != nil {
		return nil, err
	}
	accessible, err := found.accessible()
	if err == nil {
		err = begin(ref, accessible)
	}
	if err != nil {
		return nil, fmt.Errorf("use %s as source: %w", ref, err)
	}
	if err := k.protect(ctx, found); err != nil {
		return nil, fmt.Errorf("protect %s, the source of the volume: %w", ref, err)
	}
	return &volume.Source{Ref: ref, Content: found.source()}, nil
}

// Elsewhere returns the ElsewhereError of a claim's source, nil if there is none. What else may be wrong with the source is left to Keep.
func (k *Keeper) Elsewhere(ctx context.Context, claim *corev1.PersistentVolumeClaim, begun bool) error {
	ref, ok := view.SourceOf(claim)
	if !ok || k.Allowed(ctx, claim) != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, k.cfg.KubeTimeout)
	defer cancel()
	var elsewhere ElsewhereError
	if _, err := k.validate(ctx, claim, ref, begun); errors.As(err, &elsewhere) {
		return err
	}
	return nil
}

// lock gives a source that has the finalizer to all who need it, and one that has not to one of them, which puts it on.
func (k *Keeper) lock(ctx context.Context, ref volume.SourceRef) (unlock func(), err error) {
	if !k.knownKept(ref) {
		unlock, err := k.locks.Lock(ctx, ref)
		if err != nil || !k.knownKept(ref) {
			return unlock, err
		}
		unlock() // the one before has put it on
	}
	return k.locks.RLock(ctx, ref)
}

// knownKept reports whether a source has the finalizer as far as the caches know.
func (k *Keeper) knownKept(ref volume.SourceRef) bool {
	var found origin
	if ref.Kind == view.KindClaim {
		found.claim, _ = k.cfg.View.Claims.Get(ref.Namespace, ref.Name)
	} else if k.cfg.View.Snapshots != nil && k.cfg.View.Snapshots.Unwatched() == nil {
		found.snapshot, _ = k.cfg.View.Snapshots.Get(ref.Namespace, ref.Name)
	}
	return (found.claim != nil || found.snapshot != nil) && found.kept()
}

// Allowed says why a claim may not use its source, nil if it may or has none.
func (k *Keeper) Allowed(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	ref, ok := view.SourceOf(claim)
	if !ok || ref.Namespace == claim.Namespace {
		return nil
	}
	return k.access(ctx, ref.Namespace).check(claim.Namespace, ref)
}

// access returns what decides about sources in a namespace.
func (k *Keeper) access(ctx context.Context, namespace string) access {
	a := access{enabled: k.cfg.View.Grants != nil}
	if a.enabled {
		a.grants, a.unwatched, a.unknown = k.cfg.View.GrantsIn(ctx, namespace)
	}
	return a
}

// validate reads a source, and returns what speaks against it.
func (k *Keeper) validate(ctx context.Context, claim *corev1.PersistentVolumeClaim, ref volume.SourceRef, begun bool) (origin, error) {
	found, err := k.read(ctx, ref)
	if err != nil {
		return origin{}, err
	}
	w := check{driver: k.cfg.Driver, claim: claim, begun: begun, convert: k.cfg.ModeConversion, node: k.cfg.Node}
	if err := w.check(found); err != nil {
		return origin{}, fmt.Errorf("use %s as source: %w", ref, err)
	}
	return found, nil
}

// read reads a source and what is behind it from the server, for the caches keep little of it.
func (k *Keeper) read(ctx context.Context, ref volume.SourceRef) (origin, error) {
	if ref.Kind == view.KindClaim {
		return k.readClaim(ctx, ref)
	}
	return k.readSnapshot(ctx, ref)
}

// readClaim reads a claim and its volume.
func (k *Keeper) readClaim(ctx context.Context, ref volume.SourceRef) (origin, error) {
	claim, err := k.cfg.Kube.PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return origin{}, fmt.Errorf("get %s, the source: %w", ref, err)
	}
	found := origin{claim: claim}
	if claim.Spec.VolumeName == "" {
		return found, nil
	}
	pv, err := k.cfg.Kube.PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	switch {
	case err == nil:
		found.volume, _ = k.cfg.Plugin.ToCSI(pv) // as it is with an error
	case !apierrors.IsNotFound(err):
		return origin{}, fmt.Errorf("get PersistentVolume %q of %s, the source: %w", claim.Spec.VolumeName, ref, err)
	}
	return found, nil
}

// readSnapshot reads a snapshot and its content.
func (k *Keeper) readSnapshot(ctx context.Context, ref volume.SourceRef) (origin, error) {
	snapshot, err := k.cfg.Kube.VolumeSnapshots(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
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
	content, err := k.cfg.Kube.VolumeSnapshotContents().Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil:
		found.content = content
	case !apierrors.IsNotFound(err):
		return origin{}, fmt.Errorf("get VolumeSnapshotContent %q of %s, the source: %w", name, ref, err)
	}
	return found, nil
}

// protect puts the finalizer on a source. Permissions from before there was one for snapshots do not allow that: then
// nothing keeps the snapshot, as nothing did before.
func (k *Keeper) protect(ctx context.Context, found origin) error {
	if found.kept() {
		return nil
	}
	found.object().SetFinalizers(append(found.object().GetFinalizers(), found.finalizer()))
	err := k.write(ctx, found)
	if found.snapshot != nil && apierrors.IsForbidden(err) {
		klog.FromContext(ctx).Info("Snapshot is not protected while a volume is made from it", logging.KeyReason, backend.Describe(err))
		return nil
	}
	return err
}

// write stores the object of a source. It is written as a whole: the permissions that provisioners have always had allow
// updates of claims and snapshots, and no patches.
func (k *Keeper) write(ctx context.Context, found origin) error {
	if found.claim != nil {
		updated, err := k.cfg.Kube.PersistentVolumeClaims(found.claim.Namespace).Update(ctx, found.claim, metav1.UpdateOptions{})
		if err == nil {
			k.cfg.View.Claims.Remember(updated)
		}
		return err
	}
	updated, err := k.cfg.Kube.VolumeSnapshots(found.snapshot.Namespace).Update(ctx, found.snapshot, metav1.UpdateOptions{})
	if err == nil && k.cfg.View.Snapshots != nil {
		k.cfg.View.Snapshots.Remember(updated)
	}
	return err
}

// reconcile removes the finalizer from a source that no claim needs any more.
func (k *Keeper) reconcile(ctx context.Context, ref volume.SourceRef) (reconcile.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, k.cfg.KubeTimeout)
	defer cancel()
	unlock, err := k.locks.Lock(ctx, ref)
	if err != nil {
		return reconcile.Result{}, err
	}
	defer unlock()
	if k.Needed(ctx, ref) {
		return reconcile.Result{}, nil
	}
	found, err := k.read(ctx, ref)
	switch {
	case apierrors.IsNotFound(err):
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, err
	case !found.kept() || !found.isFor(k.cfg.Driver) || !canUse(k.cfg.Node, found):
		return reconcile.Result{}, nil
	}
	object := found.object()
	object.SetFinalizers(slices.DeleteFunc(object.GetFinalizers(), func(name string) bool { return name == found.finalizer() }))
	if err := k.write(ctx, found); err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, fmt.Errorf("take finalizer %s off %s: %w", found.finalizer(), ref, err)
	}
	klog.FromContext(ctx).V(2).Info("Source is free", logging.KeyObject, ref.String())
	return reconcile.Result{}, nil
}

// Needed reports whether a volume may be in creation from a source: by this process, or for a claim that another node has its hand on, and has begun, or may begin, to
// serve.
func (k *Keeper) Needed(ctx context.Context, ref volume.SourceRef) bool {
	access := sync.OnceValue(func() access { return k.access(ctx, ref.Namespace) })
	return k.cfg.InUse(ref) || slices.ContainsFunc(k.cfg.View.ClaimsFrom(ref), func(claim *corev1.PersistentVolumeClaim) bool {
		return k.cfg.Node.AssignedElsewhere(claim) != "" && (claim.Namespace == ref.Namespace || access().check(claim.Namespace, ref) == nil)
	})
}

// wantsElsewhere returns the source of a claim that another node has its hand on.
func (k *Keeper) wantsElsewhere(claim *corev1.PersistentVolumeClaim) (ref volume.SourceRef, ok bool) {
	if claim == nil || !view.Pending(claim, k.cfg.Driver) || k.cfg.Node.AssignedElsewhere(claim) == "" {
		return volume.SourceRef{}, false
	}
	return view.SourceOf(claim)
}

// sourceElsewhereFree looks at a source that was kept for a claim of another node, once that needs it no more. Only the nodes
// that have the volume look at a claim; snapshots, of which that is not in the cache, are left to the sweep.
func (k *Keeper) sourceElsewhereFree(before, after *corev1.PersistentVolumeClaim) {
	ref, wanted := k.wantsElsewhere(before)
	if _, still := k.wantsElsewhere(after); !wanted || still || ref.Kind != view.KindClaim {
		return
	}
	source, ok := k.cfg.View.Claims.Get(ref.Namespace, ref.Name)
	if !ok || !slices.Contains(source.Finalizers, view.FinalizerClone) {
		return
	}
	if pv, ok := k.cfg.View.Volumes.Get("", source.Spec.VolumeName); ok && pv.Spec.CSI != nil {
		k.Free(ref)
	}
}

// changed looks at the claims that wait for a source.
func (k *Keeper) changed(ref volume.SourceRef) {
	k.cfg.Changed(k.cfg.View.ClaimsFrom(ref))
}

// GrantChanged looks at the claims that wait for a ReferenceGrant, or must not use their source any more.
func (k *Keeper) GrantChanged(before, after *kubeapi.ReferenceGrant) {
	if after == nil {
		after = before
	}
	k.cfg.Changed(k.cfg.View.ClaimsFromNamespace(after.Namespace))
}

// ClaimChanged looks at a claim as the source of others, whether it is fit now and whether it is to be freed, and at the source that it has itself.
func (k *Keeper) ClaimChanged(before, after *corev1.PersistentVolumeClaim) {
	k.sourceElsewhereFree(before, after)
	if after == nil {
		return
	}
	ref := volume.SourceRef{Kind: view.KindClaim, Namespace: after.Namespace, Name: after.Name}
	if before == nil || before.UID != after.UID || before.Spec.VolumeName != after.Spec.VolumeName || before.Status.Phase != after.Status.Phase {
		k.changed(ref)
	}
	if slices.Contains(after.Finalizers, view.FinalizerClone) {
		k.Free(ref)
	}
}

// SnapshotChanged looks at a snapshot as the source of claims.
func (k *Keeper) SnapshotChanged(before, after *snapshotv1.VolumeSnapshot) {
	if after == nil {
		return
	}
	ref := volume.SourceRef{Kind: view.KindSnapshot, Namespace: after.Namespace, Name: after.Name}
	if before == nil || before.UID != after.UID || view.ContentName(before) != view.ContentName(after) || view.Ready(before) != view.Ready(after) {
		k.changed(ref)
	}
	if slices.Contains(after.Finalizers, view.FinalizerRestore) {
		k.Free(ref)
	}
}
