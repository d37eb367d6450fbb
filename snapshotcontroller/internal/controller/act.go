package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// maxSteps bounds the writes for a key in a row. A snapshot needs at most five until it waits for csi-snapshotter.
const maxSteps = 10

// reconcile makes the writes that a snapshot, and the contents that refer to its name, need.
func (c *Controller) reconcile(ctx context.Context, key string) (reconcile.Result, error) {
	namespace, name, _ := strings.Cut(key, "/")
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("snapshot", key))
	pause, err := c.reconcileSnapshot(ctx, namespace, name)
	if err != nil {
		return reconcile.Result{}, ignoreGone(err)
	}
	s, exists := c.snapshots.Get(namespace, name)
	for _, content := range c.contents.ByIndex(indexRef, key) {
		if !exists || !refersTo(content.Spec.VolumeSnapshotRef, s) {
			if err := c.reconcileOrphan(ctx, content, s); err != nil {
				return reconcile.Result{}, ignoreGone(err)
			}
		}
	}
	return reconcile.Result{After: cmp.Or(pause, c.vanished.forget(key, c.contents.ByIndex(indexRef, key)))}, nil
}

// reconcileSnapshot makes the writes that a snapshot needs, and returns when to look at it again.
func (c *Controller) reconcileSnapshot(ctx context.Context, namespace, name string) (time.Duration, error) {
	key, verified := namespace+"/"+name, false
	for range maxSteps {
		s, ok := c.snapshots.Get(namespace, name)
		if !ok {
			c.cfg.Operations.finish(key)
			return 0, nil
		}
		v := c.view(s)
		if v.content != nil {
			c.contentKnown(s.UID)
		}
		v.contentGone = v.contentGone || verified
		c.cfg.Operations.observe(s, v.content)
		p := planSnapshot(v)
		klog.FromContext(ctx).V(4).Info("Planned", logging.KeyState, p.verdict)
		var err error
		switch p.verdict {
		case doNothing:
			c.record(s, p.events)
			return p.after, nil
		case doVerify:
			verified, err = c.verifyGone(ctx, contentName(s))
		default:
			err = c.perform(ctx, v, p)
		}
		if err != nil {
			return 0, err
		}
		c.record(s, p.events)
		reconcile.Progress(ctx)
	}
	return 0, fmt.Errorf("snapshot %s: %d writes in a row have not been enough", key, maxSteps)
}

// perform makes the write of a plan.
func (c *Controller) perform(ctx context.Context, v view, p plan) error {
	s := v.snapshot
	switch p.verdict { //nolint:exhaustive // the others are no writes, or those of groups
	case doPatch:
		return c.refused(ctx, s, ReasonFinalizerError, c.patchSnapshot(ctx, s, p))
	case doStatus:
		err := c.patchStatus(ctx, s, p.status)
		if isRefused(err) {
			c.cfg.Events.Warning(snapshotRef(s), ReasonStatusUpdateFailed, "Failed to "+err.Error())
		}
		return err
	case doCreate:
		claims := []*corev1.PersistentVolumeClaim{v.claim}
		err := c.protect(ctx, claims, s.UID, func(ctx context.Context) error { return c.create(ctx, p.content) })
		return c.refused(ctx, s, ReasonCreateContentFailed, err)
	case doPatchContent:
		return c.refused(ctx, s, ReasonBindFailed, c.patchContent(ctx, v.content, p.contentPatch))
	case doMark:
		return c.refused(ctx, s, ReasonContentDeleteError, c.mark(ctx, v.content))
	case doDelete:
		return c.refused(ctx, s, ReasonContentDeleteError, c.delete(ctx, v.content))
	}
	return fmt.Errorf("no write is known for %q", p.verdict)
}

// refused tells users of an error that they can do something about, and returns it.
func (c *Controller) refused(ctx context.Context, s *snapshotv1.VolumeSnapshot, reason string, err error) error {
	if !isRefused(err) {
		return err
	}
	p := problemf(reason, "Failed to %v", err)
	if errors.Is(err, errClaim) {
		p.reason = ReasonClaimFinalizer
	}
	if current, ok := c.snapshots.Get(s.Namespace, s.Name); ok && current.DeletionTimestamp == nil {
		if told := report(current, p); told.verdict == doStatus {
			_ = c.patchStatus(ctx, current, told.status) // the error itself is retried
		}
	}
	c.cfg.Events.Warning(snapshotRef(s), p.reason, cut(p.message))
	return err
}

// isRefused reports whether the API server has answered that it will not do what it was asked for, as it is.
func isRefused(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && !kube.IsTransient(err) && !kube.IsStale(err) && !errors.Is(err, kube.ErrGone)
}

// patchSnapshot writes finalizers, owners and class.
func (c *Controller) patchSnapshot(ctx context.Context, s *snapshotv1.VolumeSnapshot, p plan) error {
	meta := asRead(s)
	meta["finalizers"] = p.finalizers
	if len(p.owners) != len(s.OwnerReferences) {
		meta["ownerReferences"] = p.owners
	}
	change := map[string]any{"metadata": meta}
	if p.class != "" {
		change["spec"] = map[string]any{"volumeSnapshotClassName": p.class}
	}
	patch, err := json.Marshal(change)
	if err != nil {
		return err
	}
	return c.sendSnapshot(ctx, s, patch)
}

// patchStatus writes the status.
func (c *Controller) patchStatus(ctx context.Context, s *snapshotv1.VolumeSnapshot, status *snapshotv1.VolumeSnapshotStatus) error {
	patch, err := statusPatch(s, s.Status, status)
	if err != nil {
		return err
	}
	return c.sendSnapshot(ctx, s, patch, "status")
}

func (c *Controller) sendSnapshot(ctx context.Context, s *snapshotv1.VolumeSnapshot, patch []byte, subresources ...string) error {
	ctx, cancel := c.kubeDeadline(ctx)
	defer cancel()
	patched, err := c.cfg.Snapshots.VolumeSnapshots(s.Namespace).Patch(ctx, s.Name, types.MergePatchType, patch, metav1.PatchOptions{}, subresources...)
	if err != nil {
		return kube.PatchError("VolumeSnapshot", keyOf(s), err)
	}
	c.snapshots.Remember(patched)
	return nil
}

// create creates a content. One of that name that refers to the snapshot is what an earlier attempt has created.
func (c *Controller) create(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) error {
	ctx, cancel := c.kubeDeadline(ctx)
	defer cancel()
	created, err := c.cfg.Snapshots.VolumeSnapshotContents().Create(ctx, content, metav1.CreateOptions{})
	if err == nil {
		c.created.Store(created.UID, time.Now())
	}
	if apierrors.IsAlreadyExists(err) {
		created, err = c.cfg.Snapshots.VolumeSnapshotContents().Get(ctx, content.Name, metav1.GetOptions{})
	}
	if err != nil {
		return fmt.Errorf("create VolumeSnapshotContent %q: %w", content.Name, err)
	}
	c.contents.Remember(created)
	return nil // planBound looks at whom it refers to
}

// patchContent changes the content that was read.
func (c *Controller) patchContent(ctx context.Context, content *snapshotv1.VolumeSnapshotContent, change map[string]any) error {
	meta := asRead(content)
	if changes, ok := change["metadata"].(map[string]any); ok {
		for key, value := range changes {
			meta[key] = value
		}
	}
	_, err := c.sendContent(ctx, content, map[string]any{"metadata": meta, "spec": change["spec"]})
	return err
}

// mark sets AnnBeingDeleted, and no other annotation: csi-snapshotter writes others at the same time. What counts is the answer.
func (c *Controller) mark(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) error {
	patched, err := c.sendContent(ctx, content, map[string]any{"metadata": map[string]any{
		"uid": content.UID, "annotations": map[string]any{snapshotapi.AnnBeingDeleted: "yes"},
	}})
	if err == nil && patched.Annotations[snapshotapi.AnnBeingDeleted] == "" {
		err = fmt.Errorf("mark VolumeSnapshotContent %q: the annotation %s is not there", content.Name, snapshotapi.AnnBeingDeleted)
	}
	return err
}

func (c *Controller) sendContent(ctx context.Context, content *snapshotv1.VolumeSnapshotContent, change map[string]any) (*snapshotv1.VolumeSnapshotContent, error) {
	if change["spec"] == nil {
		delete(change, "spec")
	}
	patch, err := json.Marshal(change)
	if err != nil {
		return nil, err
	}
	ctx, cancel := c.kubeDeadline(ctx)
	defer cancel()
	patched, err := c.cfg.Snapshots.VolumeSnapshotContents().Patch(ctx, content.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return nil, kube.PatchError("VolumeSnapshotContent", content.Name, err)
	}
	c.contents.Remember(patched)
	return patched, nil
}

// delete deletes a content; the finalizer keeps it until csi-snapshotter has deleted the snapshot.
func (c *Controller) delete(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) error {
	ctx, cancel := c.kubeDeadline(ctx)
	defer cancel()
	err := c.cfg.Snapshots.VolumeSnapshotContents().Delete(ctx, content.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &content.UID}})
	if apierrors.IsNotFound(err) {
		return kube.ErrGone // the watch brings it
	}
	if err != nil {
		return fmt.Errorf("delete VolumeSnapshotContent %q: %w", content.Name, err)
	}
	c.deleted.Store(content.UID, nil)
	return nil
}

// verifyGone asks the API server whether there is no content of that name.
func (c *Controller) verifyGone(ctx context.Context, name string) (bool, error) {
	ctx, cancel := c.kubeDeadline(ctx)
	defer cancel()
	content, err := c.cfg.Snapshots.VolumeSnapshotContents().Get(ctx, name, metav1.GetOptions{})
	switch {
	case snapshotapi.IsAbsent(err):
		return false, fmt.Errorf("get VolumeSnapshotContent %q: %w", name, err)
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("get VolumeSnapshotContent %q: %w", name, err)
	}
	c.contents.Remember(content)
	return false, nil
}

// reconcileOrphan makes the writes that a content needs whose snapshot is not there. s is the snapshot of that name with another uid, or nil.
func (c *Controller) reconcileOrphan(ctx context.Context, content *snapshotv1.VolumeSnapshotContent, s *snapshotv1.VolumeSnapshot) error {
	ref := content.Spec.VolumeSnapshotRef
	if s != nil && ref.UID == "" {
		return nil // the snapshot decides, if it is to be bound
	}
	p, verify := planContent(content, false)
	if verify {
		exists, err := c.snapshotExists(ctx, ref)
		if err != nil || exists {
			return err
		}
		p, _ = planContent(content, true)
	}
	for _, e := range p.events {
		c.cfg.Events.Warning(contentRef(content), e.reason, e.message)
	}
	if p.verdict == doMark {
		return c.mark(ctx, content)
	}
	if p.verdict == doPatchContent {
		return c.patchContent(ctx, content, p.contentPatch)
	}
	if _, deleted := c.deleted.Load(content.UID); deleted {
		return nil
	}
	return c.vanished.delete(ctx, content, c.snapshotExists,
		func(ctx context.Context) error { return c.mark(ctx, content) },
		func(ctx context.Context) error { return c.delete(ctx, content) })
}

// snapshotExists asks the API server for the snapshot that a content refers to.
func (c *Controller) snapshotExists(ctx context.Context, ref corev1.ObjectReference) (bool, error) {
	ctx, cancel := c.kubeDeadline(ctx)
	defer cancel()
	s, err := c.cfg.Snapshots.VolumeSnapshots(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && !snapshotapi.IsAbsent(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("get VolumeSnapshot %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	return ref.UID == "" || s.UID == ref.UID, nil
}

// record records the events of a plan.
func (c *Controller) record(s *snapshotv1.VolumeSnapshot, events []event) {
	for _, e := range events {
		if e.warning {
			c.cfg.Events.Warning(snapshotRef(s), e.reason, e.message)
		} else {
			c.cfg.Events.Normal(snapshotRef(s), e.reason, e.message)
		}
	}
}

// ignoreGone drops the error of a write to an object that is gone.
func ignoreGone(err error) error {
	if errors.Is(err, kube.ErrGone) {
		return nil
	}
	return err
}

func snapshotRef(s *snapshotv1.VolumeSnapshot) *corev1.ObjectReference {
	return refTo(s, snapshotv1.SchemeGroupVersion.String(), snapshotapi.KindVolumeSnapshot)
}

func contentRef(content *snapshotv1.VolumeSnapshotContent) *corev1.ObjectReference {
	return refTo(content, snapshotv1.SchemeGroupVersion.String(), "VolumeSnapshotContent")
}

func refTo(obj metav1.Object, version, kind string) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: version, Kind: kind, Namespace: obj.GetNamespace(), Name: obj.GetName(), UID: obj.GetUID(), ResourceVersion: obj.GetResourceVersion(),
	}
}
