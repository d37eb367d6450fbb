package snapshotapi

import (
	"crypto/sha256"
	"encoding/hex"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// API groups.
const (
	// Group is that of VolumeSnapshots, their contents and classes, in version v1.
	Group = "snapshot.storage.k8s.io"
	// GroupSnapshotGroup is that of VolumeGroupSnapshots, their contents and classes.
	GroupSnapshotGroup = "groupsnapshot.storage.k8s.io"
)

// Kinds to which objects refer: data sources of claims, owners of group members.
const (
	KindVolumeSnapshot      = "VolumeSnapshot"
	KindVolumeGroupSnapshot = "VolumeGroupSnapshot"
)

// Prefixes of annotations, labels and finalizers.
const (
	prefix      = "snapshot.storage.kubernetes.io/"
	groupPrefix = "groupsnapshot.storage.kubernetes.io/"
)

// Annotations of VolumeSnapshotContents.
const (
	// AnnBeingCreated ("yes") says that CreateSnapshot was called and that its outcome is not known; csi-snapshotter sets it before the
	// call. A content that has it must not lose its finalizer.
	AnnBeingCreated = prefix + "volumesnapshot-being-created"
	// AnnBeingDeleted ("yes") says that the VolumeSnapshot of the content is being deleted; snapshot-controller sets it.
	AnnBeingDeleted = prefix + "volumesnapshot-being-deleted"
	// AnnDeletionSecretName and AnnDeletionSecretNamespace name the secret of CreateSnapshot and DeleteSnapshot, and of
	// ListSnapshots for members of a group; snapshot-controller or the admin sets them.
	AnnDeletionSecretName      = prefix + "deletion-secret-name"
	AnnDeletionSecretNamespace = prefix + "deletion-secret-namespace"
	// AnnAllowVolumeModeChange ("true") allows to restore into a volume of another mode; the admin sets it.
	AnnAllowVolumeModeChange = prefix + "allow-volume-mode-change"
	// AnnVolumeGroupSnapshotHandle marks the content of a member of a group snapshot, and has the handle of the group: CreateSnapshot and
	// DeleteSnapshot must not be called for it.
	AnnVolumeGroupSnapshotHandle = "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle"
)

// Annotations of VolumeGroupSnapshotContents, with the meaning of those of VolumeSnapshotContents.
const (
	AnnGroupBeingCreated            = groupPrefix + "volumegroupsnapshot-being-created"
	AnnGroupBeingDeleted            = groupPrefix + "volumegroupsnapshot-being-deleted"
	AnnGroupDeletionSecretName      = groupPrefix + "deletion-secret-name"
	AnnGroupDeletionSecretNamespace = groupPrefix + "deletion-secret-namespace"
	// AnnGroupSnapshotInfoList has status.volumeSnapshotInfoList of v1beta2 as JSON, in an object converted to v1beta1; see InfoList.
	AnnGroupSnapshotInfoList = groupPrefix + "volume-snapshot-info-list"
)

// Annotations of classes: "true" makes a class the default of its driver, for snapshots that name none.
const (
	AnnDefaultClass      = prefix + "is-default-class"
	AnnGroupDefaultClass = groupPrefix + "is-default-class"
)

// Of VolumeSnapshotContents and VolumeGroupSnapshotContents, beside what the external-snapshotter has.
const (
	// LabelBeingCreated ("yes") says the same as AnnBeingCreated or AnnGroupBeingCreated, and is written and removed with it. It outlasts a
	// snapshot-controller of the external-snapshotter, which replaces all annotations by those that it has read some time ago.
	LabelBeingCreated = "csi.longshore.dev/being-created"
	// AnnAbandon ("yes") gives up the snapshot of a content that is being deleted: csi-snapshotter lets the content go without the driver, and
	// a snapshot that exists stays at the storage system. The admin sets it.
	AnnAbandon = "csi.longshore.dev/abandon"
)

// LabelManagedBy of a VolumeSnapshotContent or VolumeGroupSnapshotContent is NodeLabel of the node whose csi-snapshotter is in charge of it, in
// distributed mode.
const LabelManagedBy = prefix + "managed-by"

// Finalizers.
const (
	// FinalizerContent is that of a VolumeSnapshotContent.
	FinalizerContent = prefix + "volumesnapshotcontent-bound-protection"
	// FinalizerAsSource, FinalizerBound and FinalizerInGroup are those of a VolumeSnapshot: volumes may be restored from it, it is bound to a
	// content, it is a member of a group.
	FinalizerAsSource = prefix + "volumesnapshot-as-source-protection"
	FinalizerBound    = prefix + "volumesnapshot-bound-protection"
	FinalizerInGroup  = prefix + "volumesnapshot-in-group-protection"
	// FinalizerClaim is that of a PersistentVolumeClaim of which a snapshot is being taken.
	FinalizerClaim = prefix + "pvc-as-source-protection"
	// FinalizerGroupContent and FinalizerGroupBound are those of a VolumeGroupSnapshotContent and of a VolumeGroupSnapshot.
	FinalizerGroupContent = groupPrefix + "volumegroupsnapshotcontent-bound-protection"
	FinalizerGroupBound   = groupPrefix + "volumegroupsnapshot-bound-protection"
)

// ParamPrefix begins the parameters of classes that are reserved: they are not passed to the driver.
const ParamPrefix = "csi.storage.k8s.io/"

// Reserved parameters that name the secrets of calls; their values may have templates.
const (
	// Of CreateSnapshot and DeleteSnapshot.
	ParamSecretName      = ParamPrefix + "snapshotter-secret-name"
	ParamSecretNamespace = ParamPrefix + "snapshotter-secret-namespace"
	// Of ListSnapshots and GetSnapshot.
	ParamListSecretName      = ParamPrefix + "snapshotter-list-secret-name"
	ParamListSecretNamespace = ParamPrefix + "snapshotter-list-secret-namespace"
	// Of CreateVolumeGroupSnapshot and DeleteVolumeGroupSnapshot.
	ParamGroupSecretName      = ParamPrefix + "group-snapshotter-secret-name"
	ParamGroupSecretNamespace = ParamPrefix + "group-snapshotter-secret-namespace"
	// Of GetVolumeGroupSnapshot.
	ParamGroupGetSecretName      = ParamPrefix + "group-snapshotter-get-secret-name"
	ParamGroupGetSecretNamespace = ParamPrefix + "group-snapshotter-get-secret-namespace"
)

// Parameters that csi-snapshotter adds with --extra-create-metadata: the names of the objects behind a call.
const (
	ParamSnapshotName      = ParamPrefix + "volumesnapshot/name"
	ParamSnapshotNamespace = ParamPrefix + "volumesnapshot/namespace"
	ParamContentName       = ParamPrefix + "volumesnapshotcontent/name"
	ParamGroupName         = ParamPrefix + "volumegroupsnapshot/name"
	ParamGroupNamespace    = ParamPrefix + "volumegroupsnapshot/namespace"
	ParamGroupContentName  = ParamPrefix + "volumegroupsnapshotcontent/name"
)

// Prefixes of the names of objects that are made for others.
const (
	snapshotNamePrefix     = "snapshot-"
	contentNamePrefix      = "snapcontent-"
	groupContentNamePrefix = "groupsnapcontent-"
)

// NodeLabel returns the value of LabelManagedBy for a node: its name, or, if that is too long for a label, its beginning and a hash of it. The
// external-snapshotter has no value for long names.
func NodeLabel(node string) string {
	if len(node) <= validation.LabelValueMaxLength {
		return node
	}
	const digits = 16
	sum := sha256.Sum256([]byte(node))
	return node[:validation.LabelValueMaxLength-digits-1] + "-" + hex.EncodeToString(sum[:])[:digits]
}

// ContentName returns the name of the VolumeSnapshotContent that is made for the VolumeSnapshot of that UID.
func ContentName(snapshot types.UID) string { return contentNamePrefix + string(snapshot) }

// GroupContentName returns the name of the VolumeGroupSnapshotContent that is made for the VolumeGroupSnapshot of that UID.
func GroupContentName(group types.UID) string { return groupContentNamePrefix + string(group) }

// MemberSnapshotName returns the name of the VolumeSnapshot of a volume, by its handle, in the VolumeGroupSnapshot of that UID.
func MemberSnapshotName(group types.UID, volumeHandle string) string {
	return snapshotNamePrefix + memberHash(group, volumeHandle)
}

// MemberContentName returns the name of the VolumeSnapshotContent of that member.
func MemberContentName(group types.UID, volumeHandle string) string {
	return contentNamePrefix + memberHash(group, volumeHandle)
}

func memberHash(group types.UID, volumeHandle string) string {
	sum := sha256.Sum256([]byte(string(group) + volumeHandle))
	return hex.EncodeToString(sum[:])
}
