package controller

import (
	"strings"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/leader"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// Reasons of the events on VolumeSnapshotContents. Those on VolumeGroupSnapshotContents have reasonGroup before them.
const (
	// ReasonCreateFailed: there is no snapshot yet.
	ReasonCreateFailed = "SnapshotCreationFailed"
	// ReasonUpdateFailed: it is not known whether a snapshot that exists is ready to use.
	ReasonUpdateFailed = "SnapshotContentCheckandUpdateFailed"
	// ReasonDeleteFailed: the snapshot is not deleted yet.
	ReasonDeleteFailed = "SnapshotDeleteError"
	// ReasonAbandoned: the content goes without its snapshot, which may stay at the storage system.
	ReasonAbandoned = "SnapshotAbandoned"

	reasonGroup = "Group"
)

// Names of the work queues in metrics and logs.
const (
	QueueContents      = "csi-snapshotter-content"
	QueueGroupContents = "csi-snapshotter-groupsnapshotcontent"
)

// Component returns the name under which users see the events of the driver's snapshotter.
func Component(driver string) string { return "csi-snapshotter " + driver }

// LeaseName returns the name of the Lease that the snapshotters of a driver compete for.
func LeaseName(driver string) string {
	return leader.SanitizeName("external-snapshotter-leader-" + driver)
}

// names are those in which contents of snapshots and of group snapshots differ.
type names struct {
	// kind and version of the objects, their class, and what the driver takes.
	kind, version, classKind, what string
	// finalizer and annotations.
	finalizer, beingCreated, beingDeleted, secretName, secretNamespace string
	// Keys in the parameters of a class: of the secret of calls that read.
	readSecretName, readSecretNamespace string
	// Keys that Config.ExtraMetadata adds, and the first part of the tokens in templates of secrets.
	metaName, metaNamespace, metaContent     string
	token                                    string
	createFailed, updateFailed, deleteFailed string
	abandonedReason                          string
}

func contentNames() names {
	return names{
		kind: "VolumeSnapshotContent", version: snapshotv1.SchemeGroupVersion.String(), classKind: "VolumeSnapshotClass", what: "snapshot",
		finalizer:    snapshotapi.FinalizerContent,
		beingCreated: snapshotapi.AnnBeingCreated, beingDeleted: snapshotapi.AnnBeingDeleted,
		secretName: snapshotapi.AnnDeletionSecretName, secretNamespace: snapshotapi.AnnDeletionSecretNamespace,
		readSecretName: snapshotapi.ParamListSecretName, readSecretNamespace: snapshotapi.ParamListSecretNamespace,
		metaName: snapshotapi.ParamSnapshotName, metaNamespace: snapshotapi.ParamSnapshotNamespace, metaContent: snapshotapi.ParamContentName,
		token:        "volumesnapshot",
		createFailed: ReasonCreateFailed, updateFailed: ReasonUpdateFailed, deleteFailed: ReasonDeleteFailed, abandonedReason: ReasonAbandoned,
	}
}

func groupNames() names {
	return names{
		kind: "VolumeGroupSnapshotContent", version: groupv1.SchemeGroupVersion.String(), classKind: "VolumeGroupSnapshotClass", what: "group snapshot",
		finalizer:    snapshotapi.FinalizerGroupContent,
		beingCreated: snapshotapi.AnnGroupBeingCreated, beingDeleted: snapshotapi.AnnGroupBeingDeleted,
		secretName: snapshotapi.AnnGroupDeletionSecretName, secretNamespace: snapshotapi.AnnGroupDeletionSecretNamespace,
		readSecretName: snapshotapi.ParamGroupGetSecretName, readSecretNamespace: snapshotapi.ParamGroupGetSecretNamespace,
		metaName: snapshotapi.ParamGroupName, metaNamespace: snapshotapi.ParamGroupNamespace, metaContent: snapshotapi.ParamGroupContentName,
		token:        "volumegroupsnapshot",
		createFailed: reasonGroup + ReasonCreateFailed, updateFailed: reasonGroup + ReasonUpdateFailed, deleteFailed: reasonGroup + ReasonDeleteFailed,
		abandonedReason: reasonGroup + ReasonAbandoned,
	}
}

// WholeUUID is the Naming.UUIDLength of the whole UID, with dashes.
const WholeUUID = -1

// Naming makes the names that the driver gets.
type Naming struct {
	Prefix string
	// UUIDLength is how many characters of the UID a name has, without dashes, or WholeUUID.
	UUIDLength int
}

// name returns the name of the snapshot of the VolumeSnapshot or VolumeGroupSnapshot with that UID.
func (n Naming) name(uid types.UID) string {
	id := string(uid)
	if n.UUIDLength != WholeUUID {
		id = strings.ReplaceAll(id, "-", "")
		id = id[:min(len(id), max(n.UUIDLength, 0))]
	}
	return n.Prefix + "-" + id
}
