package view

import (
	"context"
	"testing"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

const driver = "test.csi.longshore.example"

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// quiet returns a context for a test that does not want to see a log.
func quiet(t *testing.T) context.Context {
	t.Helper()
	return klog.NewContext(t.Context(), klog.Logger{})
}

// newClaim returns a claim that wants a volume of the driver.
func newClaim() *corev1.PersistentVolumeClaim {
	class := "fast"
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "team", Name: "data", UID: "uid-1", ResourceVersion: "7", Annotations: map[string]string{AnnProvisioner: driver},
		},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class},
	}
}

// newClass returns a class of the driver.
func newClass() *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast", UID: "class-1"}, Provisioner: driver}
}

// newPV returns a bound PersistentVolume of the driver.
func newPV() *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: "pvc-uid-1", UID: "pv-1", Annotations: map[string]string{volume.AnnProvisionedBy: driver}, Finalizers: []string{volume.Finalizer},
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
