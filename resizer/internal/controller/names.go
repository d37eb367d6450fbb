package controller

import "github.com/longshore-csi/longshore/csikit/leader"

// Annotations that the resizer reads or writes.
const (
	// AnnotationResizer on a claim is the CSI driver that expands the volume of an in-tree plugin. kube-controller-manager writes it.
	AnnotationResizer = "volume.kubernetes.io/storage-resizer"
	// AnnotationNodeNotRequired on a claim says that the last expansion is complete without the node ("true").
	AnnotationNodeNotRequired = "volume.kubernetes.io/node-expansion-not-required"
	// AnnotationPreResize on a PersistentVolume is its capacity before an expansion that the node has not completed yet.
	AnnotationPreResize = "volume.alpha.kubernetes.io/pre-resize-capacity"
	// AnnotationModifySecretName and AnnotationModifySecretNamespace on a PersistentVolume name the secret of ControllerModifyVolume.
	AnnotationModifySecretName      = "volume.kubernetes.io/controller-modify-secret-name"
	AnnotationModifySecretNamespace = "volume.kubernetes.io/controller-modify-secret-namespace"
)

// Keys that ExtraMetadata adds to the mutable parameters.
const (
	keyClaimName      = "csi.storage.k8s.io/pvc/name"
	keyClaimNamespace = "csi.storage.k8s.io/pvc/namespace"
	keyVolumeName     = "csi.storage.k8s.io/pv/name"
)

// Reasons of the events on claims.
const (
	// ReasonResizing: an expansion takes longer than moments.
	ReasonResizing = "Resizing"
	// ReasonResizeFailed: an expansion did not succeed; the resizer retries, or waits until the volume is not used.
	ReasonResizeFailed = "VolumeResizeFailed"
	// ReasonResized: the expansion is complete.
	ReasonResized = "VolumeResizeSuccessful"
	// ReasonNodeRequired: the volume is expanded, its file system grows on the node.
	ReasonNodeRequired = "FileSystemResizeRequired"
	// ReasonModifying: a modification takes longer than moments.
	ReasonModifying = "VolumeModify"
	// ReasonModifyFailed: a modification did not succeed; the resizer retries, or waits for the VolumeAttributesClass.
	ReasonModifyFailed = "VolumeModifyFailed"
	// ReasonModified: the modification is complete.
	ReasonModified = "VolumeModifySuccessful"
	// ReasonModifyCanceled: the user has taken back a modification that was not possible.
	ReasonModifyCanceled = "VolumeModifyCanceled"
)

// Component returns the name under which users see the events of the driver's resizer.
func Component(driver string) string { return "external-resizer " + driver }

// LeaseName returns the name of the Lease that the resizers of a driver compete for.
func LeaseName(driver string) string { return leader.SanitizeName("external-resizer-" + driver) }

// QueueName returns the name of the work queue in metrics and logs.
func QueueName(driver string) string { return driver + "-pvc" }
