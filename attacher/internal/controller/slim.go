package controller

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/migration"
)

// This file says what the caches keep: what is read, and no more. Patches change single entries, so that they need no more either.

// slimMeta keeps what identifies an object, whether it has the finalizer, and the named annotations.
func slimMeta(meta metav1.ObjectMeta, finalizer string, annotations ...string) metav1.ObjectMeta {
	slim := kube.SlimMeta(meta, annotations...)
	slim.CreationTimestamp = meta.CreationTimestamp
	if hasFinalizer(&meta, finalizer) {
		slim.Finalizers = []string{cachedFinalizer}
	}
	return slim
}

// slimVA reduces VolumeAttachments of other drivers to their names, and drops of our own the metadata that is not read.
func slimVA(driver string) func(*storagev1.VolumeAttachment) *storagev1.VolumeAttachment {
	finalizer := FinalizerName(driver)
	return func(va *storagev1.VolumeAttachment) *storagev1.VolumeAttachment {
		if va.Spec.Attacher == driver {
			va.ObjectMeta = slimMeta(va.ObjectMeta, finalizer, AnnotationNodeID, AnnotationVolumeHandle, AnnotationPublishSecret)
			return va
		}
		return &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: va.Name, UID: va.UID, ResourceVersion: va.ResourceVersion},
			Spec:       storagev1.VolumeAttachmentSpec{Attacher: va.Spec.Attacher},
		}
	}
}

// slimPV reduces PersistentVolumes to what publish calls are made of, and those of other drivers to the name of the driver. Those of the
// in-tree plugin that driver replaces are translated first: labels and annotations that only the translation reads need not be kept.
func slimPV(driver string) func(*corev1.PersistentVolume) *corev1.PersistentVolume {
	finalizer := FinalizerName(driver)
	var annotations []string
	if migration.Replaces(driver) {
		annotations = []string{AnnotationMigratedTo}
	}
	return func(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
		translated, err := translate(driver, pv)
		if err != nil {
			return pv // kept whole: findSource translates it again, for the reason
		}
		slim := &corev1.PersistentVolume{ObjectMeta: slimMeta(pv.ObjectMeta, finalizer, annotations...)}
		switch csi := translated.Spec.CSI; {
		case csi == nil:
		case csi.Driver != driver:
			slim.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: csi.Driver}
		default:
			slim.Spec = publishedSpec(translated.Spec)
		}
		return slim
	}
}

// publishedSpec keeps of a volume of ours what a publish call is made of, and the claim, which gets events.
func publishedSpec(spec corev1.PersistentVolumeSpec) corev1.PersistentVolumeSpec {
	slim := corev1.PersistentVolumeSpec{
		PersistentVolumeSource: spec.PersistentVolumeSource, AccessModes: spec.AccessModes, MountOptions: spec.MountOptions, VolumeMode: spec.VolumeMode,
	}
	if ref := spec.ClaimRef; ref != nil {
		slim.ClaimRef = &corev1.ObjectReference{Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID}
	}
	return slim
}

// slimCSINode keeps the name of a node and its node ID of the driver.
func slimCSINode(driver string) func(*storagev1.CSINode) *storagev1.CSINode {
	return func(node *storagev1.CSINode) *storagev1.CSINode {
		slim := &storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion},
		}
		if id := csiNodeID(node, driver); id != "" {
			slim.Spec.Drivers = []storagev1.CSINodeDriver{{Name: driver, NodeID: id}}
		}
		return slim
	}
}
