package controller

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"go.uber.org/goleak"

	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

const driver = "test.csi.longshore.example"

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// newClaim returns a claim that wants a volume of our driver.
func newClaim() *corev1.PersistentVolumeClaim {
	class := "fast"
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "team", Name: "data", UID: "uid-1", ResourceVersion: "7",
			Annotations: map[string]string{view.AnnProvisioner: driver},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			},
		},
	}
}

// newClass returns a class of our driver.
func newClass() *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast", UID: "class-1", ResourceVersion: "3"}, Provisioner: driver}
}

// newPV returns a bound PersistentVolume of our driver, as the cache has it.
func newPV() *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: "pvc-uid-1", UID: "pv-1",
			Annotations: map[string]string{volume.AnnProvisionedBy: driver},
			Finalizers:  []string{"kubernetes.io/pv-protection", volume.Finalizer},
		},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "vol-1"}},
			ClaimRef:                      &corev1.ObjectReference{Namespace: "team", Name: "data", UID: "uid-1"},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			StorageClassName:              "fast",
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
}

// newIntent returns an intent of the claim's volume in some stage.
func newIntent(stage journal.Stage) *journal.Intent {
	return &journal.Intent{Stage: stage, Spec: volume.Spec{Name: "pvc-uid-1", Claim: newClaim(), Class: newClass()}}
}

// late makes the volumes of a class wait for their consumer.
func late(class *storagev1.StorageClass) {
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	class.VolumeBindingMode = &mode
}
