package controller

import (
	"fmt"
	"slices"
	"strings"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// newGroupContent makes the content of a group snapshot of the claims that its selector matches, with its class.
func newGroupContent(v groupView) (*groupv1.VolumeGroupSnapshotClass, *groupv1.VolumeGroupSnapshotContent, error) {
	group := v.group
	if v.selectorErr != nil {
		return nil, nil, problemf(ReasonValidation, "selector: %v", v.selectorErr)
	}
	if len(v.sources) == 0 {
		return nil, nil, problemf(ReasonContentCreationFailed, "the selector matches no PersistentVolumeClaim of namespace %s", group.Namespace)
	}
	var handles []string
	for _, s := range v.sources {
		if err := checkClaim(group.Namespace, s.claim.Name, s.claim, s.volume); err != nil {
			return nil, nil, err
		}
		handles = append(handles, s.volume.Spec.CSI.VolumeHandle)
	}
	class, err := chooseGroupClass(v, v.sources[0].volume.Spec.CSI.Driver)
	if err != nil {
		return nil, nil, err
	}
	for _, s := range v.sources {
		if driver := s.volume.Spec.CSI.Driver; driver != class.Driver {
			return nil, nil, problemf(ReasonValidation, "VolumeGroupSnapshotClass %q is for driver %q, claim %s has a volume of driver %q: all must have one driver",
				class.Name, class.Driver, keyOf(s.claim), driver)
		}
	}
	name := snapshotapi.GroupContentName(group.UID)
	secret, err := secretOf(groupSecretKeys(), class.Parameters, name, group.Namespace, group.Name)
	if err != nil {
		return nil, nil, problemf(ReasonContentCreationFailed, "Failed to find the secret of VolumeGroupSnapshotClass %q: %v", class.Name, err)
	}
	content := &groupv1.VolumeGroupSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{snapshotapi.FinalizerGroupContent}},
		Spec: groupv1.VolumeGroupSnapshotContentSpec{
			VolumeGroupSnapshotRef: corev1.ObjectReference{
				Kind: snapshotapi.KindVolumeGroupSnapshot, APIVersion: groupv1.SchemeGroupVersion.String(),
				Namespace: group.Namespace, Name: group.Name, UID: group.UID, ResourceVersion: group.ResourceVersion,
			},
			DeletionPolicy: class.DeletionPolicy, Driver: class.Driver, VolumeGroupSnapshotClassName: new(class.Name),
			Source: groupv1.VolumeGroupSnapshotContentSource{VolumeHandles: handles},
		},
	}
	if secret != nil {
		content.Annotations = map[string]string{
			snapshotapi.AnnGroupDeletionSecretName: secret.Name, snapshotapi.AnnGroupDeletionSecretNamespace: secret.Namespace,
		}
	}
	if v.node != "" {
		content.Labels = map[string]string{snapshotapi.LabelManagedBy: v.node}
	}
	return class, content, nil
}

func chooseGroupClass(v groupView, driver string) (*groupv1.VolumeGroupSnapshotClass, error) {
	if name := v.group.Spec.VolumeGroupSnapshotClassName; name != nil {
		if v.class == nil {
			return nil, problemf(ReasonClassFailed, "VolumeGroupSnapshotClass %q does not exist", *name)
		}
		return v.class, nil
	}
	var found []*groupv1.VolumeGroupSnapshotClass
	for _, class := range v.classes {
		if class.Driver == driver && class.Annotations[snapshotapi.AnnGroupDefaultClass] == "true" {
			found = append(found, class)
		}
	}
	if len(found) != 1 {
		return nil, noDefault("VolumeGroupSnapshotClass", ReasonDefaultClassFailed, driver, found)
	}
	return found[0], nil
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

// lacks reports whether an object of the member is to be created or written. What was created once, and is not there any more, is not
// created again.
func (m member) lacks() bool {
	switch {
	case m.content == nil:
		return m.snapshot == nil || m.snapshot.DeletionTimestamp == nil
	case m.content.DeletionTimestamp != nil:
		return false
	case m.content.Spec.VolumeSnapshotRef.UID == "":
		return true
	}
	return m.content.Status == nil || ptr.Deref(m.content.Status.SnapshotHandle, "") == ""
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

func reportGroup(group *groupv1.VolumeGroupSnapshot, err error) groupPlan {
	status := groupStatusOf(group)
	status.ReadyToUse = new(false)
	message := cut(err.Error())
	status.Error = copiedError(status.Error, &snapshotv1.VolumeSnapshotError{Message: &message})
	p := planGroupStatus(group, status)
	p.events = []event{{true, reasonOf(err), message}}
	return p
}

func groupStatusOf(group *groupv1.VolumeGroupSnapshot) *groupv1.VolumeGroupSnapshotStatus {
	if group.Status == nil {
		return &groupv1.VolumeGroupSnapshotStatus{}
	}
	return group.Status.DeepCopy()
}

func copiedGroupStatus(group *groupv1.VolumeGroupSnapshot, content *groupv1.VolumeGroupSnapshotContent) *groupv1.VolumeGroupSnapshotStatus {
	status, from := groupStatusOf(group), content.Status
	if from == nil {
		from = &groupv1.VolumeGroupSnapshotContentStatus{}
	}
	status.BoundVolumeGroupSnapshotContentName = &content.Name
	status.ReadyToUse = new(ptr.Deref(from.ReadyToUse, false))
	if !isUnknown(from.CreationTime) && isUnknown(status.CreationTime) {
		status.CreationTime = from.CreationTime.DeepCopy()
	}
	status.Error = copiedError(status.Error, from.Error)
	return status
}

func planGroupStatus(group *groupv1.VolumeGroupSnapshot, status *groupv1.VolumeGroupSnapshotStatus) groupPlan {
	if equality.Semantic.DeepEqual(group.Status, status) {
		return groupPlan{verdict: doNothing}
	}
	return groupPlan{verdict: doStatus, status: status}
}

// groupEvents are the events about what the content reports.
func groupEvents(group *groupv1.VolumeGroupSnapshot, content *groupv1.VolumeGroupSnapshotContent, now *groupv1.VolumeGroupSnapshotStatus) []event {
	var events []event
	was := groupStatusOf(group)
	if isGroupCreated(now) && !isGroupCreated(was) && !ptr.Deref(now.ReadyToUse, false) {
		events = append(events, event{reason: ReasonCreated, message: fmt.Sprintf("Group snapshot %s was successfully created by the CSI driver.", keyOf(group))})
	}
	if ptr.Deref(now.ReadyToUse, false) && !ptr.Deref(was.ReadyToUse, false) {
		events = append(events, event{reason: ReasonReady, message: fmt.Sprintf("Group snapshot %s is ready to use.", keyOf(group))})
	}
	if content.Status != nil && content.Status.Error != nil {
		events = append(events, event{true, ReasonCreationFailed, messageOf(now.Error)})
	}
	return events
}

func isGroupCreated(status *groupv1.VolumeGroupSnapshotStatus) bool {
	return status != nil && (!isUnknown(status.CreationTime) || ptr.Deref(status.ReadyToUse, false))
}

// groupReason is the reason of an event on a VolumeGroupSnapshot.
func groupReason(reason string) string {
	if reason == ReasonDeletePending || reason == ReasonDeleteError {
		return reason
	}
	return strings.Replace(reason, "Snapshot", "GroupSnapshot", 1)
}

// memberSnapshot is the VolumeSnapshot of a member.
func memberSnapshot(v groupView, m member) *snapshotv1.VolumeSnapshot {
	claim, name := "", snapshotapi.MemberSnapshotName(v.group.UID, m.info.VolumeHandle)
	if m.source.claim != nil && m.source.claim.Namespace == v.group.Namespace {
		claim = m.source.claim.Name
	}
	if m.content != nil {
		name = m.content.Spec.VolumeSnapshotRef.Name
	}
	finalizers := []string{snapshotapi.FinalizerInGroup, snapshotapi.FinalizerAsSource}
	if v.content.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete {
		finalizers = append(finalizers, snapshotapi.FinalizerBound)
	}
	return &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: v.group.Namespace, Name: name, Finalizers: finalizers,
			OwnerReferences: []metav1.OwnerReference{groupOwner(groupRef{v.group.Name, v.group.UID})},
		},
		Spec: snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim}},
	}
}

// memberContent is the content of a member, for its VolumeSnapshot. The secret is that of the group, resolved once.
func memberContent(v groupView, m member, sourceVolumeMode bool) *snapshotv1.VolumeSnapshotContent {
	group := v.content
	content := &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{
			Name: snapshotapi.MemberContentName(v.group.UID, m.info.VolumeHandle), Finalizers: []string{snapshotapi.FinalizerContent},
			Annotations: map[string]string{snapshotapi.AnnVolumeGroupSnapshotHandle: ptr.Deref(group.Status.VolumeGroupSnapshotHandle, "")},
		},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			VolumeSnapshotRef: corev1.ObjectReference{
				Kind: snapshotapi.KindVolumeSnapshot, APIVersion: snapshotv1.SchemeGroupVersion.String(),
				Namespace: m.snapshot.Namespace, Name: m.snapshot.Name, UID: m.snapshot.UID, ResourceVersion: m.snapshot.ResourceVersion,
			},
			Source: snapshotv1.VolumeSnapshotContentSource{VolumeHandle: new(m.info.VolumeHandle)},
			Driver: group.Spec.Driver, DeletionPolicy: group.Spec.DeletionPolicy,
		},
	}
	for from, to := range map[string]string{
		snapshotapi.AnnGroupDeletionSecretName:      snapshotapi.AnnDeletionSecretName,
		snapshotapi.AnnGroupDeletionSecretNamespace: snapshotapi.AnnDeletionSecretNamespace,
	} {
		if value, ok := group.Annotations[from]; ok {
			content.Annotations[to] = value
		}
	}
	if node := group.Labels[snapshotapi.LabelManagedBy]; node != "" {
		content.Labels = map[string]string{snapshotapi.LabelManagedBy: node}
	}
	if sourceVolumeMode && m.source.volume != nil {
		content.Spec.SourceVolumeMode = m.source.volume.Spec.VolumeMode
	}
	return content
}

// memberStatus is the first status of the content of a member. csi-snapshotter writes the later ones.
func memberStatus(v groupView, m member) map[string]any {
	status := map[string]any{
		"snapshotHandle": m.info.SnapshotHandle, "volumeGroupSnapshotHandle": v.content.Status.VolumeGroupSnapshotHandle,
		"readyToUse": ptr.Deref(m.info.ReadyToUse, false),
	}
	if ns := ptr.Deref(m.info.CreationTime, 0); ns != 0 {
		status["creationTime"] = ns
	}
	if size := m.info.RestoreSize; size != nil {
		status["restoreSize"] = *size
	}
	return status
}
