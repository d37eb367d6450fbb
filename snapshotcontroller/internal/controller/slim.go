package controller

import (
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// This file says what the caches keep: what is read, and no more. Patches change single entries, so that they need no more either.

// slimMeta keeps what identifies an object, its finalizers, and the named annotations.
func slimMeta(meta metav1.ObjectMeta, annotations ...string) metav1.ObjectMeta {
	slim := kube.SlimMeta(meta, annotations...)
	slim.Finalizers = meta.Finalizers
	return slim
}

func slimSnapshot(s *snapshotv1.VolumeSnapshot) *snapshotv1.VolumeSnapshot {
	slim := &snapshotv1.VolumeSnapshot{ObjectMeta: slimMeta(s.ObjectMeta), Spec: s.Spec, Status: s.Status}
	slim.OwnerReferences = s.OwnerReferences
	return slim
}

func slimContent(content *snapshotv1.VolumeSnapshotContent) *snapshotv1.VolumeSnapshotContent {
	slim := &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: slimMeta(content.ObjectMeta, snapshotapi.AnnBeingCreated, snapshotapi.AnnBeingDeleted, snapshotapi.AnnVolumeGroupSnapshotHandle),
		Spec:       content.Spec, Status: content.Status,
	}
	if node, ok := content.Labels[snapshotapi.LabelManagedBy]; ok {
		slim.Labels = map[string]string{snapshotapi.LabelManagedBy: node}
	}
	return slim
}

func slimClass(class *snapshotv1.VolumeSnapshotClass) *snapshotv1.VolumeSnapshotClass {
	slim := &snapshotv1.VolumeSnapshotClass{
		ObjectMeta: slimMeta(class.ObjectMeta, snapshotapi.AnnDefaultClass), Driver: class.Driver, DeletionPolicy: class.DeletionPolicy,
	}
	slim.Parameters = snapshotKind().secretParameters(class.Parameters)
	return slim
}

// slimClaim keeps which volume a claim has, what it is restored from, and its labels, by which groups select.
func slimClaim(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	slim := &corev1.PersistentVolumeClaim{
		ObjectMeta: slimMeta(claim.ObjectMeta), Status: corev1.PersistentVolumeClaimStatus{Phase: claim.Status.Phase},
		Spec: corev1.PersistentVolumeClaimSpec{VolumeName: claim.Spec.VolumeName},
	}
	slim.Labels = claim.Labels
	if claim.Status.Phase != corev1.ClaimBound {
		slim.Spec.DataSource, slim.Spec.DataSourceRef = claim.Spec.DataSource, claim.Spec.DataSourceRef
	}
	return slim
}

// slimPV keeps of volumes of CSI drivers what a snapshot is made of, and of others that they are none. With nodes, it keeps where
// the volume can be reached from.
func slimPV(nodes bool) func(*corev1.PersistentVolume) *corev1.PersistentVolume {
	return func(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
		slim := &corev1.PersistentVolume{ObjectMeta: slimMeta(pv.ObjectMeta)}
		slim.Finalizers = nil
		if ref := pv.Spec.ClaimRef; ref != nil {
			slim.Spec.ClaimRef = &corev1.ObjectReference{Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID}
		}
		if csi := pv.Spec.CSI; csi != nil {
			slim.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: csi.Driver, VolumeHandle: csi.VolumeHandle}
			slim.Spec.VolumeMode = pv.Spec.VolumeMode
			if nodes {
				slim.Spec.NodeAffinity = pv.Spec.NodeAffinity
			}
		}
		return slim
	}
}
