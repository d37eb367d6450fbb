package controller

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	testDriver    = "hostpath.csi.example"
	testFinalizer = "external-attacher/hostpath-csi-example"
)

// newVA returns a VolumeAttachment of pv-1 to node-1, changed by the options.
func newVA(options ...func(*storagev1.VolumeAttachment)) *storagev1.VolumeAttachment {
	pv := "pv-1"
	va := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "va-1", UID: "va-uid", ResourceVersion: "1"},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: testDriver,
			NodeName: "node-1",
			Source:   storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv},
		},
	}
	for _, o := range options {
		o(va)
	}
	return va
}

func vaDeleting(va *storagev1.VolumeAttachment) {
	now := metav1.NewTime(time.Unix(1, 0))
	va.DeletionTimestamp = &now
}

func vaAttached(va *storagev1.VolumeAttachment) { va.Status.Attached = true }

func vaFinalized(va *storagev1.VolumeAttachment) {
	va.Finalizers = append(va.Finalizers, testFinalizer)
}

func vaAttachError(message string) func(*storagev1.VolumeAttachment) {
	return func(va *storagev1.VolumeAttachment) {
		va.Status.AttachError = &storagev1.VolumeError{Message: message}
	}
}

func vaAnnotated(pairs ...string) func(*storagev1.VolumeAttachment) {
	return func(va *storagev1.VolumeAttachment) {
		va.Annotations = map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			va.Annotations[pairs[i]] = pairs[i+1]
		}
	}
}

func vaUID(uid types.UID) func(*storagev1.VolumeAttachment) {
	return func(va *storagev1.VolumeAttachment) { va.UID = uid }
}

func vaVersion(version string) func(*storagev1.VolumeAttachment) {
	return func(va *storagev1.VolumeAttachment) { va.ResourceVersion = version }
}

func vaInline(spec *corev1.PersistentVolumeSpec) func(*storagev1.VolumeAttachment) {
	return func(va *storagev1.VolumeAttachment) {
		va.Spec.Source = storagev1.VolumeAttachmentSource{InlineVolumeSpec: spec}
	}
}

// newPV returns the volume vol-1, changed by the options.
func newPV(options ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-1", UID: "pv-uid"},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{
					Driver:           testDriver,
					VolumeHandle:     "vol-1",
					FSType:           "ext4",
					VolumeAttributes: map[string]string{"tier": "gold"},
				},
			},
		},
	}
	for _, o := range options {
		o(pv)
	}
	return pv
}

func pvDeleting(pv *corev1.PersistentVolume) {
	now := metav1.NewTime(time.Unix(1, 0))
	pv.DeletionTimestamp = &now
}

func pvFinalized(pv *corev1.PersistentVolume) {
	pv.Finalizers = append(pv.Finalizers, "kubernetes.io/pv-protection", testFinalizer)
}

func pvSecret(namespace, name string) func(*corev1.PersistentVolume) {
	return func(pv *corev1.PersistentVolume) {
		pv.Spec.CSI.ControllerPublishSecretRef = &corev1.SecretReference{Namespace: namespace, Name: name}
	}
}

func pvHandle(handle string) func(*corev1.PersistentVolume) {
	return func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = handle }
}

func newCSINode(drivers ...string) *storagev1.CSINode {
	node := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	for i := 0; i < len(drivers); i += 2 {
		node.Spec.Drivers = append(node.Spec.Drivers, storagev1.CSINodeDriver{Name: drivers[i], NodeID: drivers[i+1]})
	}
	return node
}
