package view

import (
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// Annotations of claims that other components write.
const (
	// AnnProvisioner names the driver that is to provision a claim; the controller manager writes it.
	AnnProvisioner = "volume.kubernetes.io/storage-provisioner"
	// AnnBetaProvisioner is the deprecated form of AnnProvisioner.
	AnnBetaProvisioner = "volume.beta.kubernetes.io/storage-provisioner"
	// AnnSelectedNode names the node for which a claim with late binding is provisioned.
	AnnSelectedNode = "volume.kubernetes.io/selected-node"
	// AnnAlphaSelectedNode is the name that the design document gave AnnSelectedNode.
	AnnAlphaSelectedNode = "volume.alpha.kubernetes.io/selected-node"
	// AnnBetaClass overrides spec.storageClassName, of claims and of volumes.
	AnnBetaClass = "volume.beta.kubernetes.io/storage-class"
)

// Finalizers that keep what volumes are being made from. They never change: users and other components know them.
const (
	// FinalizerClone keeps a claim that a volume is being made from.
	FinalizerClone = "provisioner.storage.kubernetes.io/cloning-protection"
	// FinalizerRestore keeps a VolumeSnapshot that a volume is being made from.
	FinalizerRestore = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection"
)

// The kinds of data sources that CSI drivers, and no populators, serve.
const (
	KindClaim    = "PersistentVolumeClaim"
	KindSnapshot = "VolumeSnapshot"
)

// Pending reports whether a claim is one that the driver may have to provision.
func Pending(claim *corev1.PersistentVolumeClaim, driver string) bool {
	return claim.Spec.VolumeName == "" && DriverOf(claim) == driver
}

// DriverOf returns the driver that the controller manager wants to provision the claim.
func DriverOf(claim *corev1.PersistentVolumeClaim) string {
	name, ok := claim.Annotations[AnnProvisioner]
	if !ok {
		name = claim.Annotations[AnnBetaProvisioner]
	}
	return migrated(name, claim.Annotations)
}

// migrated returns the driver for the name of a provisioner in the annotations of an object: an in-tree plugin may have been
// migrated to a driver, as another annotation says then.
func migrated(provisioner string, annotations map[string]string) string {
	if to := annotations[volume.AnnMigratedTo]; to != "" && strings.HasPrefix(provisioner, "kubernetes.io/") {
		return to
	}
	return provisioner
}

// SelectedNode returns the node that the scheduler chose, empty for immediate binding.
func SelectedNode(claim *corev1.PersistentVolumeClaim) string {
	if node, ok := claim.Annotations[AnnSelectedNode]; ok {
		return node
	}
	return claim.Annotations[AnnAlphaSelectedNode]
}

// ClassName returns the StorageClass of the claim.
func ClassName(claim *corev1.PersistentVolumeClaim) string {
	if name, ok := claim.Annotations[AnnBetaClass]; ok {
		return name
	}
	if claim.Spec.StorageClassName != nil {
		return *claim.Spec.StorageClassName
	}
	return ""
}

// WaitsForConsumer reports whether volumes of the class are made for a node that was selected.
func WaitsForConsumer(class *storagev1.StorageClass) bool {
	return class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

// DataSource returns the data source of a claim; the older field wins. A namespace is given for another one only.
func DataSource(claim *corev1.PersistentVolumeClaim) (source corev1.TypedObjectReference, ok bool) {
	if s := claim.Spec.DataSource; s != nil {
		return corev1.TypedObjectReference{APIGroup: s.APIGroup, Kind: s.Kind, Name: s.Name}, true
	}
	s := claim.Spec.DataSourceRef
	if s == nil {
		return corev1.TypedObjectReference{}, false
	}
	source = *s
	if s.Namespace != nil && (*s.Namespace == "" || *s.Namespace == claim.Namespace) {
		source.Namespace = nil
	}
	return source, true
}

// Served reports whether a data source is one that CSI drivers serve.
func Served(source corev1.TypedObjectReference) bool {
	group := ""
	if source.APIGroup != nil {
		group = *source.APIGroup
	}
	return group == "" && source.Kind == KindClaim || group == snapshotv1.GroupName && source.Kind == KindSnapshot
}

// SourceOf returns the claim or snapshot that the volume of a claim is to be made from, which the claim may not be allowed to use.
func SourceOf(claim *corev1.PersistentVolumeClaim) (ref volume.SourceRef, ok bool) {
	source, ok := DataSource(claim)
	if !ok || !Served(source) {
		return volume.SourceRef{}, false
	}
	ref = volume.SourceRef{Kind: source.Kind, Namespace: claim.Namespace, Name: source.Name}
	if source.Namespace != nil {
		ref.Namespace = *source.Namespace
	}
	return ref, true
}

// ContentName returns the VolumeSnapshotContent of a snapshot, empty while there is none.
func ContentName(snapshot *snapshotv1.VolumeSnapshot) string {
	if snapshot.Status == nil || snapshot.Status.BoundVolumeSnapshotContentName == nil {
		return ""
	}
	return *snapshot.Status.BoundVolumeSnapshotContentName
}

// Ready reports whether a snapshot can be restored.
func Ready(snapshot *snapshotv1.VolumeSnapshot) bool {
	return snapshot.Status != nil && snapshot.Status.ReadyToUse != nil && *snapshot.Status.ReadyToUse
}

// Ours reports whether a PersistentVolume is this provisioner's to delete: it was made by it, it was made by hand for our
// driver, or it is of an in-tree plugin and was migrated to our driver.
func Ours(pv *corev1.PersistentVolume, driver string) bool {
	by, made := pv.Annotations[volume.AnnProvisionedBy]
	switch {
	case made:
		return migrated(by, pv.Annotations) == driver
	case pv.Spec.CSI != nil:
		return pv.Spec.CSI.Driver == driver
	}
	return pv.Annotations[volume.AnnMigratedTo] == driver
}

// VolumeClassName returns the StorageClass of a PersistentVolume.
func VolumeClassName(pv *corev1.PersistentVolume) string {
	if name, ok := pv.Annotations[AnnBetaClass]; ok {
		return name
	}
	return pv.Spec.StorageClassName
}
