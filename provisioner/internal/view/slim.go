package view

import (
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/migration"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapi"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// slimClaim keeps claims that are to be provisioned, but for most of their status, and of all others, which are
// most, only what identifies them, what clones of them wait for, and the record of a volume in progress.
func slimClaim(driver string) func(*corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	return func(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
		if !Pending(claim, driver) {
			slim := &corev1.PersistentVolumeClaim{ObjectMeta: kube.SlimMeta(claim.ObjectMeta)}
			if slices.Contains(claim.Finalizers, volume.FinalizerInProgress) {
				slim.ObjectMeta = kube.SlimMeta(claim.ObjectMeta, AnnProvisioner, AnnBetaProvisioner, volume.AnnMigratedTo, AnnSelectedNode, AnnAlphaSelectedNode, volume.AnnInProgress)
				slim.CreationTimestamp = claim.CreationTimestamp
			}
			slim.Finalizers = keepFinalizers(claim.Finalizers, FinalizerClone, volume.FinalizerInProgress)
			slim.Spec.VolumeName, slim.Status.Phase = claim.Spec.VolumeName, claim.Status.Phase
			return slim
		}
		claim.Status = corev1.PersistentVolumeClaimStatus{Phase: claim.Status.Phase}
		delete(claim.Annotations, corev1.LastAppliedConfigAnnotation)
		return claim
	}
}

// claimIndexes find the claims that are to be provisioned by their class, their source and the name of their volume.
func claimIndexes(driver string, naming volume.Naming) map[string]func(*corev1.PersistentVolumeClaim) []string {
	when := func(of func(*corev1.PersistentVolumeClaim) string) func(*corev1.PersistentVolumeClaim) []string {
		return func(claim *corev1.PersistentVolumeClaim) []string {
			if !Pending(claim, driver) {
				return nil
			}
			return []string{of(claim)}
		}
	}
	return map[string]func(*corev1.PersistentVolumeClaim) []string{
		claimsByClass: when(ClassName),
		claimsBySource: func(claim *corev1.PersistentVolumeClaim) []string {
			ref, ok := SourceOf(claim)
			if !ok || !Pending(claim, driver) {
				return nil
			}
			return []string{ref.String()}
		},
		claimsBySourceNamespace: func(claim *corev1.PersistentVolumeClaim) []string {
			ref, ok := SourceOf(claim)
			if !ok || !Pending(claim, driver) || ref.Namespace == claim.Namespace {
				return nil
			}
			return []string{ref.Namespace}
		},
		claimsByVolume: when(func(claim *corev1.PersistentVolumeClaim) string { return naming.Name(claim.UID) }),
	}
}

// slimVolume keeps of our volumes what deletion reads, with all that DeleteVolume needs once their claim has released them, and of all others
// only what identifies them. The handle of a volume of our driver is part of that, also when another component has made it, but not on
// another node: there it is another volume.
func slimVolume(driver string, node Node) func(*corev1.PersistentVolume) *corev1.PersistentVolume {
	return func(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
		slim := &corev1.PersistentVolume{ObjectMeta: kube.SlimMeta(pv.ObjectMeta)}
		if ref := pv.Spec.ClaimRef; ref != nil {
			slim.Spec.ClaimRef = &corev1.ObjectReference{UID: ref.UID}
		}
		source, mine := pv.Spec.CSI, Ours(pv, driver)
		related := mine || source != nil && source.Driver == driver
		if related && !node.Reaches(pv) {
			return slim
		}
		if related && source != nil {
			slim.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: source.Driver, VolumeHandle: source.VolumeHandle}
		}
		slim.ObjectMeta = kube.SlimMeta(pv.ObjectMeta, volume.AnnProvisionedBy)
		if mine {
			keepOwn(slim, pv)
		}
		return slim
	}
}

// keepOwn keeps what is read of a volume of ours.
func keepOwn(slim, pv *corev1.PersistentVolume) {
	slim.ObjectMeta, slim.Finalizers = kube.SlimMeta(pv.ObjectMeta, volume.AnnProvisionedBy, volume.AnnMigratedTo, AnnBetaClass), pv.Finalizers
	slim.Spec.PersistentVolumeReclaimPolicy = pv.Spec.PersistentVolumeReclaimPolicy
	slim.Spec.StorageClassName = pv.Spec.StorageClassName
	slim.Status.Phase = pv.Status.Phase
	if pv.Status.Phase == corev1.VolumeBound && pv.DeletionTimestamp == nil {
		return // most volumes are in use
	}
	slim.Spec.NodeAffinity = pv.Spec.NodeAffinity // its capacity comes back there
	slim.Annotations = kube.SlimMeta(pv.ObjectMeta, volume.AnnProvisionedBy, volume.AnnMigratedTo, AnnBetaClass, volume.AnnDeletionSecretName, volume.AnnDeletionSecretNamespace).Annotations
	if ref := pv.Spec.ClaimRef; ref != nil {
		slim.Spec.ClaimRef.Namespace, slim.Spec.ClaimRef.Name = ref.Namespace, ref.Name
	}
}

// inCSIForm translates volumes of the in-tree plugin before they are slimmed. Why one cannot be translated is in its message.
func inCSIForm(plugin migration.Plugin, slim func(*corev1.PersistentVolume) *corev1.PersistentVolume) func(*corev1.PersistentVolume) *corev1.PersistentVolume {
	if plugin.Name() == "" {
		return slim
	}
	return func(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
		translated, err := plugin.ToCSI(pv)
		kept := slim(translated)
		if err != nil {
			kept.Status.Message = err.Error()
		}
		return kept
	}
}

// keepFinalizers returns those of the named finalizers that are there, nil for none.
func keepFinalizers(finalizers []string, names ...string) (kept []string) {
	for _, name := range names {
		if slices.Contains(finalizers, name) {
			kept = append(kept, name)
		}
	}
	return kept
}

// slimSnapshot keeps what volumes that are made from a snapshot wait for.
func slimSnapshot(snapshot *snapshotv1.VolumeSnapshot) *snapshotv1.VolumeSnapshot {
	slim := &snapshotv1.VolumeSnapshot{ObjectMeta: kube.SlimMeta(snapshot.ObjectMeta)}
	slim.Finalizers = keepFinalizers(snapshot.Finalizers, FinalizerRestore)
	if status := snapshot.Status; status != nil {
		slim.Status = &snapshotv1.VolumeSnapshotStatus{BoundVolumeSnapshotContentName: status.BoundVolumeSnapshotContentName, ReadyToUse: status.ReadyToUse}
	}
	return slim
}

// slimGrant keeps what a grant allows.
func slimGrant(grant *kubeapi.ReferenceGrant) *kubeapi.ReferenceGrant {
	return &kubeapi.ReferenceGrant{ObjectMeta: kube.SlimMeta(grant.ObjectMeta), Spec: grant.Spec}
}

// Handles indexes the volumes of our driver by their handle.
func Handles(driver string) func(*corev1.PersistentVolume) []string {
	return func(pv *corev1.PersistentVolume) []string {
		if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != driver {
			return nil
		}
		return []string{pv.Spec.CSI.VolumeHandle}
	}
}

// slimAttachment keeps which PersistentVolume is attached.
func slimAttachment(attachment *storagev1.VolumeAttachment) *storagev1.VolumeAttachment {
	slim := &storagev1.VolumeAttachment{ObjectMeta: kube.SlimMeta(attachment.ObjectMeta)}
	slim.Spec.NodeName = attachment.Spec.NodeName
	slim.Spec.Source.PersistentVolumeName = attachment.Spec.Source.PersistentVolumeName
	return slim
}

// AttachedVolume returns the PersistentVolume of an attachment; inline volumes have none.
func AttachedVolume(attachment *storagev1.VolumeAttachment) []string {
	if name := attachment.Spec.Source.PersistentVolumeName; name != nil {
		return []string{*name}
	}
	return nil
}

// slimCSINode keeps what our driver has registered.
func slimCSINode(driver string) func(*storagev1.CSINode) *storagev1.CSINode {
	return func(node *storagev1.CSINode) *storagev1.CSINode {
		slim := &storagev1.CSINode{ObjectMeta: kube.SlimMeta(node.ObjectMeta)}
		for _, registered := range node.Spec.Drivers {
			if registered.Name == driver {
				slim.Spec.Drivers = append(slim.Spec.Drivers, storagev1.CSINodeDriver{
					Name: registered.Name, NodeID: registered.NodeID, TopologyKeys: registered.TopologyKeys,
				})
			}
		}
		return slim
	}
}
