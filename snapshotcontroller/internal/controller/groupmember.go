package controller

import (
	"context"
	"encoding/json"
	"fmt"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// members returns the volumes of which the driver has taken snapshots, with what exists of them, found by handle: other versions gave them
// other names.
func (g *groups) members(group *groupv1.VolumeGroupSnapshot, content *groupv1.VolumeGroupSnapshotContent) []member {
	if content.Status == nil || ptr.Deref(content.Status.VolumeGroupSnapshotHandle, "") == "" {
		return nil
	}
	var members []member
	for _, info := range snapshotapi.InfoList(content) {
		m := member{info: info}
		for _, pv := range g.pvs.ByIndex(indexHandle, handleKey(content.Spec.Driver, info.VolumeHandle)) {
			m.source.volume = pv
			if ref := pv.Spec.ClaimRef; ref != nil {
				m.source.claim, _ = g.claims.Get(ref.Namespace, ref.Name)
			}
		}
		m.content = g.memberContentOf(content, info)
		name := snapshotapi.MemberSnapshotName(group.UID, info.VolumeHandle)
		if m.content != nil {
			name = m.content.Spec.VolumeSnapshotRef.Name
		}
		m.snapshot, _ = g.snapshots.Get(group.Namespace, name)
		members = append(members, m)
	}
	return members
}

// memberContentOf returns the content of a member, nil if there is none: it has the annotation, or names group and snapshot in its status.
func (g *groups) memberContentOf(group *groupv1.VolumeGroupSnapshotContent, info groupv1.VolumeSnapshotInfo) *snapshotv1.VolumeSnapshotContent {
	handle := *group.Status.VolumeGroupSnapshotHandle
	for _, of := range g.contents.ByIndex(indexHandle, handleKey(group.Spec.Driver, info.VolumeHandle)) {
		if of.Annotations[snapshotapi.AnnVolumeGroupSnapshotHandle] == handle {
			return of
		}
	}
	for _, of := range g.contents.ByIndex(indexGroup, handle) {
		if of.Spec.Driver == group.Spec.Driver && ptr.Deref(of.Status.SnapshotHandle, "") == info.SnapshotHandle {
			return of
		}
	}
	return nil
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

// performMember makes the next write for a member: its VolumeSnapshot, then its content, then the first status of that.
func (g *groups) performMember(ctx context.Context, v groupView, m member) error {
	ctx, cancel := g.kubeDeadline(ctx)
	defer cancel()
	snapshots, contents := g.cfg.Snapshots.VolumeSnapshots(v.group.Namespace), g.cfg.Snapshots.VolumeSnapshotContents()
	switch {
	case m.snapshot == nil && (m.content == nil || m.content.Spec.VolumeSnapshotRef.UID == ""):
		s := memberSnapshot(v, m)
		created, err := snapshots.Create(ctx, s, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			created, err = snapshots.Get(ctx, s.Name, metav1.GetOptions{})
		}
		if err != nil {
			return fmt.Errorf("create VolumeSnapshot %s: %w", keyOf(s), err)
		}
		if owner := ownerGroup(created); owner == nil || owner.uid != v.group.UID {
			return apierrors.NewInvalid(snapshotv1.SchemeGroupVersion.WithKind(snapshotapi.KindVolumeSnapshot).GroupKind(), created.Name, nil)
		}
		g.snapshots.Remember(created)
		return nil
	case m.content == nil:
		return g.create(ctx, memberContent(v, m, g.cfg.SourceVolumeMode))
	case m.content.Spec.VolumeSnapshotRef.UID == "":
		return g.patchContent(ctx, m.content, map[string]any{"spec": map[string]any{"volumeSnapshotRef": map[string]any{"uid": m.snapshot.UID}}})
	}
	patch, err := json.Marshal(map[string]any{"metadata": asRead(m.content), "status": memberStatus(v, m)})
	if err != nil {
		return err
	}
	patched, err := contents.Patch(ctx, m.content.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return kube.PatchError("VolumeSnapshotContent", m.content.Name, err)
	}
	g.contents.Remember(patched)
	return nil
}

// deleteMember deletes the VolumeSnapshot of a member.
func (g *groups) deleteMember(ctx context.Context, s *snapshotv1.VolumeSnapshot) error {
	ctx, cancel := g.kubeDeadline(ctx)
	defer cancel()
	err := g.cfg.Snapshots.VolumeSnapshots(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete VolumeSnapshot %s: %w", keyOf(s), err)
	}
	g.deleted.Store(s.UID, nil)
	return nil
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
			OwnerReferences: []metav1.OwnerReference{groupOwner(groupRef{v.group.Name, v.group.UID}, v.version)},
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
