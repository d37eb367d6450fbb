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
	"k8s.io/utils/ptr"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// member is a volume of a group with what exists of its snapshot.
type member struct {
	info     groupv1.VolumeSnapshotInfo
	source   source
	snapshot *snapshotv1.VolumeSnapshot
	content  *content
}

// membersOf returns the volumes of which the driver has taken snapshots, with what exists of them, found by handle: other versions gave them
// other names.
func (g *groups) membersOf(o *owner, of *content) []member {
	if of.status == nil || of.status.handle == "" {
		return nil
	}
	var members []member
	for _, info := range snapshotapi.InfoList(of.group) {
		m := member{info: info, content: g.memberContent(of, info)}
		if pv := g.volumeOf(of.driver, info.VolumeHandle); pv != nil {
			m.source.volume = pv
			if ref := pv.Spec.ClaimRef; ref != nil {
				m.source.claim, _ = g.claims.Get(ref.Namespace, ref.Name)
			}
		}
		m.snapshot, _ = g.snapshots.Get(o.GetNamespace(), m.name(o))
		members = append(members, m)
	}
	return members
}

// name returns the name of the VolumeSnapshot.
func (m member) name(group *owner) string {
	if m.content != nil {
		return m.content.ref.Name
	}
	return snapshotapi.MemberSnapshotName(group.GetUID(), m.info.VolumeHandle)
}

// memberContent returns the content of a member, nil if there is none: it has the annotation, or names group and snapshot in its status.
func (g *groups) memberContent(group *content, info groupv1.VolumeSnapshotInfo) *content {
	for _, of := range g.singles.contentsWith(indexHandle, handleKey(group.driver, info.VolumeHandle)) {
		if of.GetAnnotations()[snapshotapi.AnnVolumeGroupSnapshotHandle] == group.status.handle {
			return of
		}
	}
	for _, of := range g.singles.contentsWith(indexGroup, group.status.handle) {
		if of.driver == group.driver && of.status.handle == info.SnapshotHandle {
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
	case m.content.GetDeletionTimestamp() != nil:
		return false
	case m.content.ref.UID == "":
		return true
	}
	return m.content.status == nil || m.content.status.handle == ""
}

// makeMember makes the next write for a member: its VolumeSnapshot, then its content, then the first status of that.
func (g *groups) makeMember(ctx context.Context, v view, m member) error {
	switch {
	case m.snapshot == nil && (m.content == nil || m.content.ref.UID == ""):
		return g.makeMemberSnapshot(ctx, v, m)
	case m.content == nil:
		return g.singles.makeContent(ctx, v.memberContent(m))
	case m.content.ref.UID == "":
		return g.singles.changeContent(ctx, m.content, map[string]any{"spec": map[string]any{g.singles.refField: map[string]any{"uid": m.snapshot.UID}}})
	}
	patch, err := json.Marshal(map[string]any{"metadata": asRead(m.content), "status": v.memberStatus(m)})
	if err == nil {
		_, err = g.singles.patchContent(ctx, m.content, patch, "status")
	}
	return err
}

// makeMemberSnapshot creates the VolumeSnapshot of a member. One of that name is that of an earlier attempt, or it is refused.
func (g *groups) makeMemberSnapshot(ctx context.Context, v view, m member) error {
	ctx, cancel := g.kubeDeadline(ctx)
	defer cancel()
	s, snapshots := v.memberSnapshot(m), g.cfg.Snapshots.VolumeSnapshots(v.owner.GetNamespace())
	created, err := snapshots.Create(ctx, s, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		created, err = snapshots.Get(ctx, s.Name, metav1.GetOptions{})
	}
	if err != nil {
		return fmt.Errorf("create VolumeSnapshot %s: %w", keyOf(s), err)
	}
	if owner := ownerGroup(created); owner == nil || owner.uid != v.owner.GetUID() {
		return apierrors.NewInvalid(snapshotv1.SchemeGroupVersion.WithKind(snapshotapi.KindVolumeSnapshot).GroupKind(), created.Name, nil)
	}
	g.snapshots.Remember(created)
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
func (v view) memberSnapshot(m member) *snapshotv1.VolumeSnapshot {
	claim, group := "", v.owner
	if m.source.claim != nil && m.source.claim.Namespace == group.GetNamespace() {
		claim = m.source.claim.Name
	}
	finalizers := []string{snapshotapi.FinalizerInGroup, snapshotapi.FinalizerAsSource}
	if v.content.policy == snapshotv1.VolumeSnapshotContentDelete {
		finalizers = append(finalizers, snapshotapi.FinalizerBound)
	}
	return &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: group.GetNamespace(), Name: m.name(group), Finalizers: finalizers,
			OwnerReferences: []metav1.OwnerReference{groupOwner(groupRef{group.GetName(), group.GetUID()}, v.groupVersion)},
		},
		Spec: snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim}},
	}
}

// memberContent is the content of a member, for its VolumeSnapshot. The secret is that of the group, resolved once.
func (v view) memberContent(m member) *newContent {
	group := v.content
	c := &newContent{
		name: snapshotapi.MemberContentName(v.owner.GetUID(), m.info.VolumeHandle), driver: group.driver, policy: group.policy, volumes: []string{m.info.VolumeHandle},
		ref: corev1.ObjectReference{
			Kind: snapshotapi.KindVolumeSnapshot, APIVersion: snapshotv1.SchemeGroupVersion.String(),
			Namespace: m.snapshot.Namespace, Name: m.snapshot.Name, UID: m.snapshot.UID, ResourceVersion: m.snapshot.ResourceVersion,
		},
	}
	c.meta = metav1.ObjectMeta{
		Name: c.name, Finalizers: []string{snapshotapi.FinalizerContent}, Annotations: map[string]string{snapshotapi.AnnVolumeGroupSnapshotHandle: group.status.handle},
	}
	for from, to := range map[string]string{
		v.secretName: snapshotapi.AnnDeletionSecretName, v.secretNamespace: snapshotapi.AnnDeletionSecretNamespace,
	} {
		if value, ok := group.GetAnnotations()[from]; ok {
			c.meta.Annotations[to] = value
		}
	}
	if node := group.GetLabels()[snapshotapi.LabelManagedBy]; node != "" {
		c.meta.Labels = map[string]string{snapshotapi.LabelManagedBy: node}
	}
	if v.sourceVolumeMode && m.source.volume != nil {
		c.mode = m.source.volume.Spec.VolumeMode
	}
	return c
}

// memberStatus is the first status of the content of a member. csi-snapshotter writes the later ones.
func (v view) memberStatus(m member) map[string]any {
	status := map[string]any{
		"snapshotHandle": m.info.SnapshotHandle, "volumeGroupSnapshotHandle": v.content.status.handle, "readyToUse": ptr.Deref(m.info.ReadyToUse, false),
	}
	if ns := ptr.Deref(m.info.CreationTime, 0); ns != 0 {
		status["creationTime"] = ns
	}
	if size := m.info.RestoreSize; size != nil {
		status["restoreSize"] = *size
	}
	return status
}
