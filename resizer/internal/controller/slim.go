package controller

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/migration"
)

// This file says what the caches keep: what is read, and no more. Patches change single entries, so that they need no more either.

func slimClaim(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: kube.SlimMeta(claim.ObjectMeta, AnnotationResizer, AnnotationNodeNotRequired),
		Spec: corev1.PersistentVolumeClaimSpec{
			VolumeName: claim.Spec.VolumeName, Resources: corev1.VolumeResourceRequirements{Requests: claim.Spec.Resources.Requests},
			VolumeAttributesClassName: claim.Spec.VolumeAttributesClassName,
		},
		Status: corev1.PersistentVolumeClaimStatus{
			Phase: claim.Status.Phase, Capacity: claim.Status.Capacity, Conditions: claim.Status.Conditions,
			AllocatedResources: claim.Status.AllocatedResources, AllocatedResourceStatuses: claim.Status.AllocatedResourceStatuses,
			CurrentVolumeAttributesClassName: claim.Status.CurrentVolumeAttributesClassName, ModifyVolumeStatus: claim.Status.ModifyVolumeStatus,
		},
	}
}

// slimPV reduces PersistentVolumes to what calls are made of, and those of other drivers to the name of the driver. Those of the
// in-tree plugin that driver replaces are translated first: labels and annotations that only the translation reads need not be kept.
func slimPV(driver string) func(*corev1.PersistentVolume) *corev1.PersistentVolume {
	return func(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
		translated, err := migration.Of(driver).WithCSI(pv)
		slim := &corev1.PersistentVolume{
			ObjectMeta: kube.SlimMeta(pv.ObjectMeta, AnnotationPreResize, AnnotationModifySecretName, AnnotationModifySecretNamespace),
		}
		if err != nil || translated.Spec.CSI == nil || translated.Spec.CSI.Driver != driver {
			return slim
		}
		spec := translated.Spec
		csi := spec.CSI
		slim.Spec = corev1.PersistentVolumeSpec{
			Capacity: spec.Capacity, AccessModes: spec.AccessModes, MountOptions: spec.MountOptions, VolumeMode: spec.VolumeMode,
			VolumeAttributesClassName: spec.VolumeAttributesClassName, PersistentVolumeSource: spec.PersistentVolumeSource,
		}
		slim.Spec.CSI = &corev1.CSIPersistentVolumeSource{
			Driver: csi.Driver, VolumeHandle: csi.VolumeHandle, FSType: csi.FSType, ControllerExpandSecretRef: csi.ControllerExpandSecretRef,
		}
		if ref := spec.ClaimRef; ref != nil {
			slim.Spec.ClaimRef = &corev1.ObjectReference{Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID}
		}
		return slim
	}
}

// slimPod keeps the names of a pod and of its claims.
func slimPod(pod *corev1.Pod) *corev1.Pod {
	slim := &corev1.Pod{ObjectMeta: kube.SlimMeta(pod.ObjectMeta), Status: corev1.PodStatus{Phase: pod.Status.Phase}}
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil || v.Ephemeral != nil {
			slim.Spec.Volumes = append(slim.Spec.Volumes, corev1.Volume{Name: v.Name, VolumeSource: claimSource(v)})
		}
	}
	return slim
}

// claimSource keeps that a volume is a claim, and of which name unless the name follows from the volume's.
func claimSource(v corev1.Volume) corev1.VolumeSource {
	if v.Ephemeral != nil {
		return corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
	}
	return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: v.PersistentVolumeClaim.ClaimName}}
}

// slimVA keeps which volume is attached where, for attachments of the driver.
func slimVA(driver string) func(*storagev1.VolumeAttachment) *storagev1.VolumeAttachment {
	return func(va *storagev1.VolumeAttachment) *storagev1.VolumeAttachment {
		slim := &storagev1.VolumeAttachment{ObjectMeta: kube.SlimMeta(va.ObjectMeta)}
		if va.Spec.Attacher == driver {
			slim.Spec = storagev1.VolumeAttachmentSpec{
				Attacher: driver, NodeName: va.Spec.NodeName,
				Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: va.Spec.Source.PersistentVolumeName},
			}
		}
		return slim
	}
}
