package testbed

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ClaimMiB is the size of claims, in MiB.
const ClaimMiB = 16

// image has a shell; on a development cluster nothing runs it.
const image = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1"

// Class returns a StorageClass of a driver whose claims may grow.
func Class(name, driver string, mode storagev1.VolumeBindingMode) *storagev1.StorageClass {
	policy := corev1.PersistentVolumeReclaimDelete
	return &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: name},
		Provisioner:       driver,
		VolumeBindingMode: &mode,
		ReclaimPolicy:     &policy,

		AllowVolumeExpansion: new(true),
	}
}

// Claim returns a claim of ClaimMiB.
func Claim(namespace, name, class string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("16Mi")}},
		},
	}
}

// BlockClaim returns a claim of ClaimMiB for a raw block volume.
func BlockClaim(namespace, name, class string) *corev1.PersistentVolumeClaim {
	claim := Claim(namespace, name, class)
	claim.Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
	return claim
}

// Pod returns a pod that mounts one volume at /data and runs until it is deleted.
func Pod(namespace, name string, source corev1.VolumeSource) *corev1.Pod {
	grace := int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{
				Name: "main", Image: image, Command: []string{"sh", "-c", "trap exit TERM; while :; do sleep 1; done"},
				VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
			}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: source}},
		},
	}
}

// FromClaim returns the volume of a claim, for a pod.
func FromClaim(name string) corev1.VolumeSource {
	return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
}

// Inline returns an ephemeral volume of a driver, for a pod.
func Inline(driver string) corev1.VolumeSource {
	return corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driver, VolumeAttributes: map[string]string{"size": "16Mi"}}}
}

// Clone lets a claim be made of another one of its namespace, and returns it.
func Clone(claim *corev1.PersistentVolumeClaim, source string) *corev1.PersistentVolumeClaim {
	claim.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: source}
	return claim
}
