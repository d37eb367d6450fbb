package controller

import (
	"strings"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// kind is how snapshots and group snapshots differ: the names that the API has for them, and the words that users read.
type kind struct {
	// ownerKind, contentKind and classKind are the kinds of the objects, in apiVersion.
	ownerKind, contentKind, classKind, apiVersion string
	// what is asked for, What at the beginning of a sentence, and all what goes with a content.
	what, What, all string
	// sources and contentSources are the two fields of the spec of which one has to be set.
	sources, contentSources string
	// held says that a claim is being restored, and released when the deletion goes on.
	held, released string

	// finalizers are those of an owner, finalizersDelete those that it has besides when the snapshot is deleted with it.
	finalizers, finalizersDelete []string
	contentFinalizer             string
	// Annotations of contents and of classes.
	beingCreated, beingDeleted, secretName, secretNamespace, defaultClass string
	secret                                                                snapshotapi.SecretKeys
	// Fields of the status and the spec of the owner, and of the spec of the content.
	boundField, classField, refField string
	// contentName is the name of the content that is made for an owner of that UID.
	contentName func(types.UID) string
	// group is what the reasons of events and the keys of operations have besides, empty for snapshots.
	group string
	// Operations, in metrics.
	create, becomeReady, del string
}

func snapshotKind() *kind {
	return &kind{
		ownerKind: snapshotapi.KindVolumeSnapshot, contentKind: "VolumeSnapshotContent", classKind: "VolumeSnapshotClass", apiVersion: snapshotv1.SchemeGroupVersion.String(),
		what: "snapshot", What: "Snapshot", all: "the snapshot", sources: "volumeSnapshotContentName and persistentVolumeClaimName",
		contentSources: "volumeHandle and snapshotHandle",
		held:           "Snapshot is being used to restore a PVC", released: "it is deleted",
		finalizers: []string{snapshotapi.FinalizerAsSource}, finalizersDelete: []string{snapshotapi.FinalizerBound},
		contentFinalizer: snapshotapi.FinalizerContent, beingCreated: snapshotapi.AnnBeingCreated, beingDeleted: snapshotapi.AnnBeingDeleted,
		secretName: snapshotapi.AnnDeletionSecretName, secretNamespace: snapshotapi.AnnDeletionSecretNamespace, defaultClass: snapshotapi.AnnDefaultClass,
		secret:     snapshotapi.SecretKeys{Name: snapshotapi.ParamSecretName, Namespace: snapshotapi.ParamSecretNamespace, Token: "volumesnapshot"},
		boundField: "boundVolumeSnapshotContentName", classField: "volumeSnapshotClassName", refField: "volumeSnapshotRef",
		contentName: snapshotapi.ContentName,
		create:      "CreateSnapshot", becomeReady: "CreateSnapshotAndReady", del: "DeleteSnapshot",
	}
}

func groupKind() *kind {
	return &kind{
		ownerKind: snapshotapi.KindVolumeGroupSnapshot, contentKind: "VolumeGroupSnapshotContent", classKind: "VolumeGroupSnapshotClass", apiVersion: groupv1.SchemeGroupVersion.String(),
		what: "group snapshot", What: "Group snapshot", all: "the snapshots", sources: "volumeGroupSnapshotContentName and selector",
		contentSources: "volumeHandles and groupSnapshotHandles",
		held:           "A snapshot of the group is being used to restore a PVC", released: "the group is deleted",
		finalizers: []string{snapshotapi.FinalizerGroupBound}, contentFinalizer: snapshotapi.FinalizerGroupContent,
		beingCreated: snapshotapi.AnnGroupBeingCreated, beingDeleted: snapshotapi.AnnGroupBeingDeleted,
		secretName: snapshotapi.AnnGroupDeletionSecretName, secretNamespace: snapshotapi.AnnGroupDeletionSecretNamespace, defaultClass: snapshotapi.AnnGroupDefaultClass,
		secret:     snapshotapi.SecretKeys{Name: snapshotapi.ParamGroupSecretName, Namespace: snapshotapi.ParamGroupSecretNamespace, Token: "volumegroupsnapshot"},
		boundField: "boundVolumeGroupSnapshotContentName", classField: "volumeGroupSnapshotClassName", refField: "volumeGroupSnapshotRef",
		contentName: snapshotapi.GroupContentName, group: "Group",
		create: "CreateGroupSnapshot", becomeReady: "CreateGroupSnapshotAndReady", del: "DeleteGroupSnapshot",
	}
}

// reason is that of an event on an owner.
func (k *kind) reason(reason string) string {
	if reason == ReasonDeletePending || reason == ReasonDeleteError {
		return reason
	}
	return strings.Replace(reason, "Snapshot", k.group+"Snapshot", 1)
}

// ownFinalizers are the finalizers of this controller on an owner; those of a member of a group included.
func (k *kind) ownFinalizers() []string {
	return append(append([]string{snapshotapi.FinalizerInGroup}, k.finalizers...), k.finalizersDelete...)
}

// secretParameters returns the parameters of a class that name the secret; no other is read.
func (k *kind) secretParameters(parameters map[string]string) map[string]string {
	kept := map[string]string{}
	for _, key := range []string{k.secret.Name, k.secret.Namespace} {
		if value, ok := parameters[key]; ok {
			kept[key] = value
		}
	}
	return kept
}
