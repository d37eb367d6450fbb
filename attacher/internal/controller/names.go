package controller

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/leader"
)

// Annotations that the attacher reads or writes.
const (
	// AnnotationNodeID on a VolumeAttachment is the node ID the volume was published to.
	AnnotationNodeID = "csi.alpha.kubernetes.io/node-id"
	// AnnotationVolumeHandle on a VolumeAttachment is the volume handle that was
	// published, so that the volume can be detached after its PersistentVolume is gone.
	AnnotationVolumeHandle = "csi.longshore.dev/volume-handle"
	// AnnotationPublishSecret on a VolumeAttachment is namespace/name of the secret that
	// the publish call was made with, for the same purpose.
	AnnotationPublishSecret = "csi.longshore.dev/publish-secret"
	// AnnotationNodeIDs on a Node is a JSON object of driver name to node ID (seed 001,
	// "Attaching and Detaching"). The kubelet keeps it beside the CSINode.
	AnnotationNodeIDs = "csi.volume.kubernetes.io/nodeid"
	// AnnotationMigratedTo on a PersistentVolume of an in-tree plugin is the CSI driver that serves the volume.
	// kube-controller-manager maintains it.
	AnnotationMigratedTo = "pv.kubernetes.io/migrated-to"
)

// Reasons of the events on the VolumeAttachment and on the claim of its volume.
const (
	// ReasonAttachFailed: a volume could not be attached; the attacher retries.
	ReasonAttachFailed = "FailedAttachVolume"
	// ReasonDetachFailed: a volume could not be detached; the attacher retries.
	ReasonDetachFailed = "FailedDetachVolume"
	// ReasonStateMismatch: the driver's ListVolumes contradicts the VolumeAttachment twice in a row.
	ReasonStateMismatch = "AttachmentStateMismatch"
)

const (
	finalizerPrefix = "external-attacher/"
	leasePrefix     = "external-attacher-leader-"
)

// FinalizerName returns the finalizer that the attacher of a driver puts on
// VolumeAttachments and PersistentVolumes.
func FinalizerName(driver string) string {
	return finalizerPrefix + leader.SanitizeName(driver)
}

// LeaseName returns the name of the Lease that the attachers of a driver compete for.
func LeaseName(driver string) string {
	return leader.SanitizeName(leasePrefix + driver)
}

// cachedFinalizer stands in the caches for the attacher's finalizer, whose name is the longest part of many objects. The API server
// accepts no finalizer without a name.
const cachedFinalizer = ""

// hasFinalizer reports whether an object, from the API server or from a cache, has the attacher's finalizer.
func hasFinalizer(obj metav1.Object, finalizer string) bool {
	return slices.ContainsFunc(obj.GetFinalizers(), func(name string) bool { return name == finalizer || name == cachedFinalizer })
}

func isDeleting(obj metav1.Object) bool {
	return obj.GetDeletionTimestamp() != nil
}
