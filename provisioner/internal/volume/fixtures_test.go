package volume

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const driver = "hostpath.csi.example.com"

// newClaim returns a claim for 1 GiB with the given access modes.
func newClaim(modes ...corev1.PersistentVolumeAccessMode) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "data", UID: "0a1b2c3d-0000-4000-8000-000000000001", ResourceVersion: "7"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes,
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			},
		},
	}
}

// newClass returns a class with a mount option.
func newClass() *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta:   metav1.ObjectMeta{Name: "fast"},
		Provisioner:  driver,
		MountOptions: []string{"noatime"},
	}
}

// newSpec returns the spec of a mounted volume.
func newSpec() Spec {
	claim := newClaim(corev1.ReadWriteOnce)
	return Spec{
		Name:       Naming{Prefix: "pvc", UUIDLength: -1}.Name(claim.UID),
		Claim:      claim,
		Class:      newClass(),
		FSType:     "ext4",
		Parameters: map[string]string{"type": "ssd"},
	}
}

// block makes a claim one for a raw block volume.
func block(claim *corev1.PersistentVolumeClaim) {
	mode := corev1.PersistentVolumeBlock
	claim.Spec.VolumeMode = &mode
}
