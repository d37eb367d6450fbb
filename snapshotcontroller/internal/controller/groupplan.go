package controller

import (
	"fmt"
	"slices"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// Verdicts for group snapshots only.
const (
	// doMember makes a write for a member: groupPlan.member.
	doMember verdict = "member"
	// doDeleteMember deletes groupPlan.member.snapshot.
	doDeleteMember verdict = "deleteMember"
)

// groupView is what the caches have about one VolumeGroupSnapshot.
type groupView struct {
	group *groupv1.VolumeGroupSnapshot
	// version is that in which group snapshots are served.
	version string
	// content, contentGone and contentDeleted are as in view.
	content                     *groupv1.VolumeGroupSnapshotContent
	contentGone, contentDeleted bool
	class                       *groupv1.VolumeGroupSnapshotClass
	classes                     []*groupv1.VolumeGroupSnapshotClass
	// sources are the claims that the selector matches, by name.
	sources     []source
	selectorErr error
	// members are the volumes of the group that the driver has taken a snapshot of.
	members []member
	// snapshots are the VolumeSnapshots that the group owns; restoring is the name of a claim that is being restored from one of them.
	snapshots []*snapshotv1.VolumeSnapshot
	restoring string
	node      string
}

// source is a claim with its volume, which may be nil.
type source struct {
	claim  *corev1.PersistentVolumeClaim
	volume *corev1.PersistentVolume
}

// member is a volume of a group with what exists of its snapshot.
type member struct {
	info     groupv1.VolumeSnapshotInfo
	source   source
	snapshot *snapshotv1.VolumeSnapshot
	content  *snapshotv1.VolumeSnapshotContent
}

// groupPlan is the next write for a group snapshot, and what users are told; see plan.
type groupPlan struct {
	verdict      verdict
	finalizers   []string
	class        string
	content      *groupv1.VolumeGroupSnapshotContent
	contentPatch map[string]any
	status       *groupv1.VolumeGroupSnapshotStatus
	member       *member
	events       []event
}

// planGroup decides what is next for a group snapshot.
func planGroup(v groupView) groupPlan {
	group := v.group
	if group.DeletionTimestamp != nil {
		return planGroupDelete(v)
	}
	from := group.Spec.Source
	switch {
	case (from.Selector == nil) == (from.VolumeGroupSnapshotContentName == nil):
		return reportGroup(group, problemf(ReasonValidation, "exactly one of volumeGroupSnapshotContentName and selector must be set"))
	case v.content != nil:
		return planGroupBound(v)
	case from.VolumeGroupSnapshotContentName != nil:
		return reportGroup(group, problemf(ReasonContentMissing, "VolumeGroupSnapshotContent %q is missing: create it, or delete the group snapshot",
			*from.VolumeGroupSnapshotContentName))
	case groupBoundName(group) != "":
		return reportGroup(group, problemf(ReasonContentMissing, "VolumeGroupSnapshotContent %q is missing: it was deleted, and the snapshots with it", groupBoundName(group)))
	}
	class, content, err := newGroupContent(v)
	if err != nil {
		return reportGroup(group, err)
	}
	if p, needed := planGroupMeta(group, class.Name); needed {
		return p
	}
	return groupPlan{verdict: doCreate, content: content, events: []event{{
		reason: ReasonCreating, message: fmt.Sprintf("Waiting for a group snapshot %s to be created by the CSI driver.", keyOf(group)),
	}}}
}

func planGroupMeta(group *groupv1.VolumeGroupSnapshot, class string) (groupPlan, bool) {
	p := groupPlan{verdict: doPatch, finalizers: withAll(group.Finalizers, snapshotapi.FinalizerGroupBound)}
	if group.Spec.VolumeGroupSnapshotClassName == nil {
		p.class = class
	}
	return p, p.class != "" || len(p.finalizers) != len(group.Finalizers)
}

// planGroupBound binds a group snapshot and its content to each other, creates the members, and copies the status.
func planGroupBound(v groupView) groupPlan {
	group, content := v.group, v.content
	if err := groupMismatch(group, content); err != nil {
		return reportGroup(group, err)
	}
	if p, needed := planGroupMeta(group, ""); needed {
		return p
	}
	patch := map[string]any{}
	if meta := contentMeta(content, v.node); len(meta) > 0 {
		patch["metadata"] = meta
	}
	if content.Spec.VolumeGroupSnapshotRef.UID == "" {
		patch["spec"] = map[string]any{"volumeGroupSnapshotRef": map[string]any{"uid": group.UID}}
	}
	if len(patch) > 0 {
		return groupPlan{verdict: doPatchContent, contentPatch: patch}
	}
	status := copiedGroupStatus(group, content)
	if group.Status == nil || !ptr.Deref(group.Status.ReadyToUse, false) {
		for i := range v.members {
			if v.members[i].lacks() {
				return groupPlan{verdict: doMember, member: &v.members[i]}
			}
		}
	}
	p := planGroupStatus(group, status)
	p.events = groupEvents(group, content, status)
	return p
}

// groupMismatch returns what keeps a group snapshot and its content from being bound.
func groupMismatch(group *groupv1.VolumeGroupSnapshot, content *groupv1.VolumeGroupSnapshotContent) error {
	ref, preProvisioned := content.Spec.VolumeGroupSnapshotRef, group.Spec.Source.VolumeGroupSnapshotContentName != nil
	switch {
	case preProvisioned && content.Spec.Source.GroupSnapshotHandles == nil:
		return problemf(ReasonContentMismatch, "VolumeGroupSnapshotContent %q is dynamically provisioned while expecting a pre-provisioned one", content.Name)
	case !preProvisioned && len(content.Spec.Source.VolumeHandles) == 0:
		return problemf(ReasonContentMismatch, "VolumeGroupSnapshotContent %q is pre-provisioned while expecting a dynamically provisioned one", content.Name)
	case refersTo(ref, group), preProvisioned && ref.UID == "" && ref.Namespace == group.Namespace && ref.Name == group.Name:
		return nil
	case groupBoundName(group) != "":
		return problemf(ReasonMisbound, "VolumeGroupSnapshotContent %q is not bound to the VolumeGroupSnapshot correctly: it refers to %s", content.Name, refText(ref))
	}
	return problemf(ReasonContentMisbound, "VolumeGroupSnapshotContent %q is bound to a different group snapshot: %s", content.Name, refText(ref))
}

// planGroupDelete takes a group snapshot that is being deleted apart, as planDelete does, and deletes the members before the content is gone.
func planGroupDelete(v groupView) groupPlan {
	group, content := v.group, v.content
	if !slices.Contains(group.Finalizers, snapshotapi.FinalizerGroupBound) {
		return groupPlan{verdict: doNothing}
	}
	owned := content != nil && refersTo(content.Spec.VolumeGroupSnapshotRef, group)
	switch {
	case v.restoring != "":
		return groupPlan{verdict: doNothing, events: []event{{true, ReasonDeletePending,
			fmt.Sprintf("A snapshot of the group is being used to restore a PVC: the group is deleted when claim %s is bound or deleted", v.restoring)}}}
	case content == nil && !v.contentGone:
		return groupPlan{verdict: doVerify}
	}
	deleting := owned && (content.DeletionTimestamp != nil || v.contentDeleted)
	if owned {
		if p := planGroupContentDelete(content, v.node, deleting); p.verdict != doNothing {
			return p
		}
	}
	left := func(s *snapshotv1.VolumeSnapshot) bool { return s.DeletionTimestamp == nil }
	if i := slices.IndexFunc(v.snapshots, left); i >= 0 {
		return groupPlan{verdict: doDeleteMember, member: &member{snapshot: v.snapshots[i]}}
	}
	if deleting {
		return planGroupDeleting(group, content)
	}
	return groupPlan{verdict: doPatch, finalizers: without(group.Finalizers, snapshotapi.FinalizerGroupBound)}
}

// planGroupContentDelete marks and deletes the content.
func planGroupContentDelete(content *groupv1.VolumeGroupSnapshotContent, node string, deleting bool) groupPlan {
	switch meta := contentMeta(content, node); {
	case !deleting && len(meta) > 0:
		return groupPlan{verdict: doPatchContent, contentPatch: map[string]any{"metadata": meta}}
	case content.Annotations[snapshotapi.AnnGroupBeingDeleted] == "":
		return groupPlan{verdict: doMark}
	case !deleting && content.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete:
		return groupPlan{verdict: doDelete}
	}
	return groupPlan{verdict: doNothing}
}

// planGroupDeleting shows the driver's error while csi-snapshotter deletes the group snapshot.
func planGroupDeleting(group *groupv1.VolumeGroupSnapshot, content *groupv1.VolumeGroupSnapshotContent) groupPlan {
	if content.Status == nil || content.Status.Error == nil {
		return groupPlan{verdict: doNothing}
	}
	status := groupStatusOf(group)
	status.Error = copiedError(status.Error, content.Status.Error)
	p := planGroupStatus(group, status)
	p.events = []event{{true, ReasonDeleteError, "Failed to delete group snapshot: " + messageOf(content.Status.Error)}}
	return p
}
