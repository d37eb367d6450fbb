package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// A claim has the finalizer from before the content of its snapshot is created until the driver has reported the snapshot, or the content is
// gone: the volume must not be deleted while the driver may be reading it. A claim that is being deleted waits for no
// snapshot that the driver has refused.

// reconcileClaim removes the finalizer from a claim that needs it no more.
func (c *Controller) reconcileClaim(ctx context.Context, key string) (reconcile.Result, error) {
	namespace, name, _ := strings.Cut(key, "/")
	unlock, err := c.locks.Lock(ctx, key)
	if err != nil {
		return reconcile.Result{}, err
	}
	defer unlock()
	claim, pv := c.claimOf(namespace, name)
	if claim == nil || !isProtected(claim) || c.isHeld(claim, pv) {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, kube.IgnoreGone(c.patchClaim(ctx, claim, without(claim.Finalizers, snapshotapi.FinalizerClaim)))
}

func isProtected(claim *corev1.PersistentVolumeClaim) bool {
	return slices.Contains(claim.Finalizers, snapshotapi.FinalizerClaim)
}

// isHeld reports whether the driver may be taking a snapshot of the claim.
func (c *Controller) isHeld(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) bool {
	if c.creating.of(keyOf(claim)) || c.awaitsGroups() {
		return true
	}
	on, _ := c.served()
	deleting := claim.DeletionTimestamp != nil
	if pv != nil && pv.Spec.CSI != nil {
		handle := handleKey(pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle)
		for _, of := range c.singles.contentsWith(indexHandle, handle) {
			if of.isOpen(c.singles.kind, deleting) {
				return true
			}
		}
		if on != nil && on.holds(handle, deleting) {
			return true
		}
	}
	for _, s := range c.snapshots.ByIndex(indexClaim, keyOf(claim)) { // the volume may be gone, or be another one
		if of := c.singles.findContent(ownerOfSnapshot(s).contentName()); of != nil && of.isOpen(c.singles.kind, deleting) {
			return true
		}
	}
	return false
}

// errClaim is that the finalizer could not be put on the claim.
var errClaim = errors.New("protect the claim")

// protect puts the finalizer on claims and creates the content of a snapshot of them, while no one may remove the finalizers. uid is that of
// the snapshot. The claims must be sorted.
func (c *Controller) protect(ctx context.Context, claims []*corev1.PersistentVolumeClaim, uid types.UID, create func(context.Context) error) error {
	var keys []string
	for _, claim := range claims {
		unlock, err := c.locks.Lock(ctx, keyOf(claim))
		if err != nil {
			return err
		}
		defer unlock()
		current, ok := c.claims.Get(claim.Namespace, claim.Name)
		if !ok || current.UID != claim.UID {
			return kube.ErrGone
		}
		keys = append(keys, keyOf(claim))
		if isProtected(current) || current.DeletionTimestamp != nil { // no finalizer can be added to one that is being deleted
			continue
		}
		if err := c.patchClaim(ctx, current, withAll(current.Finalizers, snapshotapi.FinalizerClaim)); err != nil {
			return fmt.Errorf("%w: %w", errClaim, err)
		}
	}
	c.creating.begin(keys, uid)
	err := create(ctx)
	if err == nil || kube.IsRefused(err) {
		c.creating.end(uid)
	}
	if kube.IsRefused(err) {
		for _, key := range keys {
			c.claimQueue.Add(key)
		}
	}
	return err
}

// contentKnown ends the time in which the content of an owner may exist although the cache does not have it.
func (c *Controller) contentKnown(owner types.UID) {
	for _, claim := range c.creating.end(owner) {
		c.claimQueue.Add(claim)
	}
}

// patchClaim sets the finalizers of the claim that was read.
func (c *Controller) patchClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim, finalizers []string) error {
	meta := asRead(claim)
	meta["finalizers"] = finalizers
	patch, err := json.Marshal(map[string]any{"metadata": meta})
	if err != nil {
		return err
	}
	ctx, cancel := c.kubeDeadline(ctx)
	defer cancel()
	var patched *corev1.PersistentVolumeClaim
	mayPatch := !c.updatesClaims.Load()
	if mayPatch {
		patched, err = c.cfg.Kube.PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if !mayPatch || apierrors.IsForbidden(err) {
		patched, err = c.updateClaim(ctx, claim, finalizers)
		c.updatesClaims.Store(err == nil || !mayPatch && !apierrors.IsForbidden(err))
	}
	if err != nil {
		return kube.PatchError("PersistentVolumeClaim", keyOf(claim), err)
	}
	c.claims.Remember(patched)
	return nil
}

// updateClaim does the same for a role that may only update claims, as that of the external-snapshotter. The cache has no whole claims, so it is
// read first; a conflict is returned if it has changed since.
func (c *Controller) updateClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim, finalizers []string) (*corev1.PersistentVolumeClaim, error) {
	claims := c.cfg.Kube.PersistentVolumeClaims(claim.Namespace)
	whole, err := claims.Get(ctx, claim.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	whole.UID, whole.ResourceVersion, whole.Finalizers = claim.UID, claim.ResourceVersion, finalizers
	return claims.Update(ctx, whole, metav1.UpdateOptions{})
}

// creating has the owners, with their claims, for which a content was asked for without an answer: it may exist although the cache does not
// have it, or may come when the request is served at last. The zero value is empty.
type creating struct {
	mu     sync.Mutex
	owners map[types.UID]asked
}

// asked is one creation of a content.
type asked struct {
	claims []string
	at     time.Time
}

func (c *creating) begin(claims []string, owner types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.owners == nil {
		c.owners = map[types.UID]asked{}
	}
	c.owners[owner] = asked{claims, time.Now()}
}

// end forgets an owner, and returns its claims.
func (c *creating) end(owner types.UID) (claims []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	claims = c.owners[owner].claims
	delete(c.owners, owner)
	return claims
}

// rest returns how much longer a content of an owner may come: an API server gives requests up after a minute.
func (c *creating) rest(owner types.UID) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if asked, ok := c.owners[owner]; ok {
		return vanishGrace - time.Since(asked.at)
	}
	return 0
}

// of reports whether a content of a snapshot of the claim may exist.
func (c *creating) of(claim string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, asked := range c.owners {
		if slices.Contains(asked.claims, claim) {
			return true
		}
	}
	return false
}
