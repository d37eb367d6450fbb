package controller

import (
	"fmt"
	"slices"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// view is what the caches have about one VolumeSnapshot.
type view struct {
	snapshot *snapshotv1.VolumeSnapshot
	// content is that which the snapshot names, is bound to, or was made for it. nil: there is none.
	content *snapshotv1.VolumeSnapshotContent
	// contentGone: the API server, not only the cache, has no such content.
	contentGone bool
	// contentDeleted: the API server has accepted the deletion of the content, whatever the cache has.
	contentDeleted bool
	// class is that which the snapshot names, nil if it does not exist. classes are all, for the default.
	class   *snapshotv1.VolumeSnapshotClass
	classes []*snapshotv1.VolumeSnapshotClass
	claim   *corev1.PersistentVolumeClaim
	volume  *corev1.PersistentVolume
	// restoring is the name of a claim that is being restored from the snapshot; empty: none.
	restoring string
	// group is the group snapshot that the snapshot is a member of, nil for none. groupKnown: it is known whether it exists.
	group                                  *groupRef
	groupKnown, groupExists, groupDeleting bool
	groupVersion                           string
	// grace is how long the snapshot is not yet shown as bound to the content that was just created: most are ready soon, and then need one write of
	// the status.
	grace time.Duration
	// node is the value of the label that says which node's csi-snapshotter is in charge of the volume; empty: no label.
	node string
	// sourceVolumeMode says that contents record the mode of their volume.
	sourceVolumeMode bool
}

// groupRef identifies a VolumeGroupSnapshot in the namespace of its members.
type groupRef struct {
	name string
	uid  types.UID
}

// verdict is the next write for a snapshot.
type verdict string

const (
	doNothing verdict = "nothing"
	// doPatch writes finalizers, class and owner of the snapshot.
	doPatch verdict = "patch"
	// doCreate puts the finalizer on the claim, then creates the content.
	doCreate verdict = "create"
	// doPatchContent writes plan.contentPatch, which needs the content to be as it was read.
	doPatchContent verdict = "patchContent"
	// doStatus writes the status of the snapshot.
	doStatus verdict = "status"
	// doMark says on the content that it may be deleted (AnnBeingDeleted).
	doMark verdict = "mark"
	// doDelete deletes the content.
	doDelete verdict = "delete"
	// doVerify asks the API server whether the content exists, as the cache has none.
	doVerify verdict = "verify"
)

// plan is the next write for a snapshot, and what users are told.
type plan struct {
	verdict verdict
	// finalizers, owners and class are those of the snapshot after doPatch; class is empty if it stays.
	finalizers []string
	owners     []metav1.OwnerReference
	class      string
	// content is what doCreate creates; contentPatch the changes of doPatchContent.
	content      *snapshotv1.VolumeSnapshotContent
	contentPatch map[string]any
	// status is that of doStatus.
	status *snapshotv1.VolumeSnapshotStatus
	// events are recorded once the write has succeeded.
	events []event
	// after is when to look again after doNothing, although nothing has changed. 0: never.
	after time.Duration
}

// event is one for users, about the snapshot.
type event struct {
	warning         bool
	reason, message string
}

// problem is what keeps a snapshot from what it asks for, until an object changes.
type problem struct{ reason, message string }

// Error implements error.
func (p *problem) Error() string { return p.message }

func problemf(reason, format string, args ...any) *problem {
	return &problem{reason, fmt.Sprintf(format, args...)}
}

// planSnapshot decides what is next for a snapshot.
func planSnapshot(v view) plan {
	s := v.snapshot
	if s.DeletionTimestamp != nil {
		return planDelete(v)
	}
	source := s.Spec.Source
	switch {
	case (source.PersistentVolumeClaimName == nil) == (source.VolumeSnapshotContentName == nil):
		return report(s, problemf(ReasonValidation, "exactly one of volumeSnapshotContentName and persistentVolumeClaimName must be set"))
	case v.content != nil:
		return planBound(v)
	case source.VolumeSnapshotContentName != nil:
		return report(s, problemf(ReasonContentMissing, "VolumeSnapshotContent %q is missing: create it, or delete the snapshot", *source.VolumeSnapshotContentName))
	case boundName(s) != "":
		return report(s, problemf(ReasonContentMissing, "VolumeSnapshotContent %q is missing: it was deleted, and the snapshot with it", boundName(s)))
	case ownerGroup(s) != nil:
		return plan{verdict: doNothing} // whoever works on the group creates the content
	}
	return planCreate(v)
}

// planCreate makes the content of a snapshot that is to be taken of a claim.
func planCreate(v view) plan {
	class, content, err := newContent(v)
	if err != nil {
		return report(v.snapshot, err)
	}
	if p, needed := planMeta(v, class.Name, class.DeletionPolicy); needed {
		return p
	}
	return plan{verdict: doCreate, content: content}
}

// planMeta puts finalizers, class and owner on the snapshot, if any of them is missing.
func planMeta(v view, class string, policy snapshotv1.DeletionPolicy) (plan, bool) {
	s := v.snapshot
	p := plan{verdict: doPatch, finalizers: withAll(s.Finalizers, snapshotapi.FinalizerAsSource), owners: s.OwnerReferences}
	if policy == snapshotv1.VolumeSnapshotContentDelete {
		p.finalizers = withAll(p.finalizers, snapshotapi.FinalizerBound)
	}
	if s.Spec.VolumeSnapshotClassName == nil {
		p.class = class
	}
	if v.group != nil && v.groupExists && !v.groupDeleting {
		p.finalizers = withAll(p.finalizers, snapshotapi.FinalizerInGroup)
		if ownerGroup(s) == nil {
			p.owners = append(slices.Clone(p.owners), groupOwner(*v.group, v.groupVersion))
		}
	}
	needed := p.class != "" || len(p.finalizers) != len(s.Finalizers) || len(p.owners) != len(s.OwnerReferences)
	return p, needed
}

// planBound binds a snapshot and its content to each other, and copies the status.
func planBound(v view) plan {
	s, content := v.snapshot, v.content
	if err := mismatch(s, content); err != nil {
		return report(s, err)
	}
	if p, needed := planMeta(v, "", content.Spec.DeletionPolicy); needed {
		return p
	}
	if content.Status == nil && content.Annotations[snapshotapi.AnnVolumeGroupSnapshotHandle] != "" {
		return plan{verdict: doNothing} // whoever has created the member writes the first status
	}
	if patch := bindingPatch(v); patch != nil {
		return plan{verdict: doPatchContent, contentPatch: patch}
	}
	if v.grace > 0 && content.Status == nil && s.Status == nil {
		return plan{verdict: doNothing, after: v.grace}
	}
	status := copiedStatus(s, content, v.group)
	p := planStatus(s, status)
	p.events = append(p.events, statusEvents(s, content, status)...)
	return p
}

// mismatch returns what keeps a snapshot and its content from being bound.
func mismatch(s *snapshotv1.VolumeSnapshot, content *snapshotv1.VolumeSnapshotContent) error {
	ref, preProvisioned := content.Spec.VolumeSnapshotRef, s.Spec.Source.VolumeSnapshotContentName != nil
	switch {
	case preProvisioned && content.Spec.Source.SnapshotHandle == nil:
		return problemf(ReasonContentMismatch, "VolumeSnapshotContent %q is dynamically provisioned while expecting a pre-provisioned one", content.Name)
	case !preProvisioned && content.Spec.Source.VolumeHandle == nil && ownerGroup(s) == nil:
		return problemf(ReasonContentMismatch, "VolumeSnapshotContent %q is pre-provisioned while expecting a dynamically provisioned one", content.Name)
	case refersTo(ref, s), preProvisioned && ref.UID == "" && ref.Namespace == s.Namespace && ref.Name == s.Name:
		return nil
	case boundName(s) != "":
		return problemf(ReasonMisbound, "VolumeSnapshotContent %q is not bound to the VolumeSnapshot correctly: it refers to %s", content.Name, refText(ref))
	}
	return problemf(ReasonContentMisbound, "VolumeSnapshotContent %q is bound to a different snapshot: %s", content.Name, refText(ref))
}

// bindingPatch is what the content lacks of being bound: the uid of the snapshot, its class, the finalizer, the node. nil: nothing.
func bindingPatch(v view) map[string]any {
	s, content := v.snapshot, v.content
	meta, spec := contentMeta(content, v.node), map[string]any{}
	if content.Spec.VolumeSnapshotRef.UID == "" {
		spec["volumeSnapshotRef"] = map[string]any{"uid": s.UID}
		if class := s.Spec.VolumeSnapshotClassName; class != nil && content.Spec.VolumeSnapshotClassName == nil {
			spec["volumeSnapshotClassName"] = *class
		}
	}
	patch := map[string]any{}
	if len(meta) > 0 {
		patch["metadata"] = meta
	}
	if len(spec) > 0 {
		patch["spec"] = spec
	}
	if len(patch) == 0 {
		return nil
	}
	return patch
}

// contentMeta is what a content lacks of its metadata: the finalizer, and the node that is in charge of it.
func contentMeta(content metav1.Object, node string) map[string]any {
	meta := map[string]any{}
	finalizer := snapshotapi.FinalizerContent
	if _, ok := content.(*snapshotv1.VolumeSnapshotContent); !ok {
		finalizer = snapshotapi.FinalizerGroupContent
	}
	if content.GetDeletionTimestamp() == nil && !slices.Contains(content.GetFinalizers(), finalizer) {
		meta["finalizers"] = withAll(content.GetFinalizers(), finalizer)
	}
	if node != "" && content.GetLabels()[snapshotapi.LabelManagedBy] != node {
		meta["labels"] = map[string]any{snapshotapi.LabelManagedBy: node}
	}
	return meta
}

// planDelete takes a snapshot that is being deleted apart, in the order that csi-snapshotter relies on: AnnBeingDeleted on the content, then
// its deletion, and the finalizers of the snapshot when the content is gone.
func planDelete(v view) plan {
	s, content := v.snapshot, v.content
	rest := without(s.Finalizers, snapshotapi.FinalizerAsSource, snapshotapi.FinalizerBound, snapshotapi.FinalizerInGroup)
	if len(rest) == len(s.Finalizers) {
		return plan{verdict: doNothing}
	}
	switch {
	case v.restoring != "":
		return pending(v, fmt.Sprintf("Snapshot is being used to restore a PVC: it is deleted when claim %s is bound or deleted", v.restoring))
	case !v.groupKnown, v.groupDeleting:
		return plan{verdict: doNothing} // the group comes first
	case v.groupExists:
		return pending(v, fmt.Sprintf("Snapshot is a member of VolumeGroupSnapshot %q: it is deleted with the group", v.group.name))
	case content == nil && !v.contentGone:
		return plan{verdict: doVerify}
	case content == nil || !refersTo(content.Spec.VolumeSnapshotRef, s):
		return plan{verdict: doPatch, finalizers: rest, owners: s.OwnerReferences}
	}
	return planContentDelete(v, rest)
}

// planContentDelete marks and deletes the content of a snapshot; rest are the finalizers that the snapshot has in the end.
func planContentDelete(v view, rest []string) plan {
	s, content := v.snapshot, v.content
	deleting := content.DeletionTimestamp != nil || v.contentDeleted
	switch meta := contentMeta(content, v.node); {
	case len(meta) > 0:
		return plan{verdict: doPatchContent, contentPatch: map[string]any{"metadata": meta}}
	case content.Annotations[snapshotapi.AnnBeingDeleted] == "":
		return plan{verdict: doMark}
	case !deleting && content.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete:
		return plan{verdict: doDelete}
	case !deleting:
		return plan{verdict: doPatch, finalizers: rest, owners: s.OwnerReferences}
	}
	return planDeleting(s, content)
}

// planDeleting shows the driver's error while csi-snapshotter deletes the snapshot.
func planDeleting(s *snapshotv1.VolumeSnapshot, content *snapshotv1.VolumeSnapshotContent) plan {
	if content.Status == nil || content.Status.Error == nil {
		return plan{verdict: doNothing}
	}
	status := statusOf(s)
	status.Error = copiedError(status.Error, content.Status.Error)
	p := planStatus(s, status)
	what := "Failed to delete snapshot: "
	if content.Annotations[snapshotapi.AnnBeingCreated] != "" {
		what = "Snapshot is deleted when the driver has answered whether it was created: "
	}
	p.events = []event{{true, ReasonDeleteError, what + messageOf(content.Status.Error)}}
	return p
}

// pending waits, and says why. Meanwhile the status is kept up to date, as a restore may need it.
func pending(v view, message string) plan {
	p := plan{verdict: doNothing}
	if s, content := v.snapshot, v.content; content != nil && mismatch(s, content) == nil {
		status := copiedStatus(s, content, v.group)
		p = planStatus(s, status)
		p.events = statusEvents(s, content, status)
	}
	p.events = append(p.events, event{true, ReasonDeletePending, message})
	return p
}

// report writes a problem to the status, if it is not there yet.
func report(s *snapshotv1.VolumeSnapshot, err error) plan {
	status := statusOf(s)
	status.ReadyToUse = new(false)
	message := cut(err.Error())
	status.Error = copiedError(status.Error, &snapshotv1.VolumeSnapshotError{Message: &message})
	p := planStatus(s, status)
	p.events = []event{{true, reasonOf(err), message}}
	return p
}

// reasonOf returns the reason of a problem.
func reasonOf(err error) string {
	if p, ok := err.(*problem); ok { //nolint:errorlint // problems are never wrapped
		return p.reason
	}
	return ReasonValidation
}

// planContent decides about a content whose snapshot is not there: a content that an admin has deleted must not wait for a snapshot
// forever. orphan says that the API server has no snapshot of that uid. A content that nobody deletes is left unchanged, as it may be a
// copy of another cluster's.
func planContent(content *snapshotv1.VolumeSnapshotContent, orphan bool) (p plan, verify bool) {
	source := content.Spec.Source
	switch {
	case (source.VolumeHandle == nil) == (source.SnapshotHandle == nil):
		return plan{verdict: doNothing, events: []event{{true, ReasonContentValidation, "exactly one of volumeHandle and snapshotHandle must be set"}}}, false
	case content.DeletionTimestamp == nil:
		if meta := contentMeta(content, ""); content.Spec.VolumeSnapshotRef.UID != "" && len(meta) > 0 {
			return plan{verdict: doPatchContent, contentPatch: map[string]any{"metadata": meta}}, false
		}
	case content.Spec.VolumeSnapshotRef.UID == "" && source.SnapshotHandle != nil:
		// csi-snapshotter deletes it without a mark.
	case content.Annotations[snapshotapi.AnnBeingDeleted] == "" && orphan:
		return plan{verdict: doMark}, false
	case content.Annotations[snapshotapi.AnnBeingDeleted] == "":
		return plan{verdict: doNothing}, true
	}
	return plan{verdict: doNothing}, false
}
