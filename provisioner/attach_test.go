package provisioner

import (
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/provisioner/internal/claim"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// newCSIDriver returns the CSIDriver object of the test driver.
func newCSIDriver(attach *bool) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: csitest.DefaultName}, Spec: storagev1.CSIDriverSpec{AttachRequired: attach}}
}

// attachedVolume returns a released volume and its VolumeAttachment.
func attachedVolume() []runtime.Object {
	name := "pvc-uid-a"
	return []runtime.Object{
		&corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{volume.Finalizer}, Annotations: map[string]string{volume.AnnProvisionedBy: csitest.DefaultName}},
			Spec: corev1.PersistentVolumeSpec{
				PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: csitest.DefaultName, VolumeHandle: "vol-a"}},
				PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			},
			Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeReleased},
		},
		&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va"}, Spec: storagev1.VolumeAttachmentSpec{
			Attacher: csitest.DefaultName, NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &name},
		}},
	}
}

// TestAttachRequired has a released volume with a VolumeAttachment, which keeps it unless the CSIDriver object says that volumes
// are not attached.
func TestAttachRequired(t *testing.T) {
	yes, no := true, false
	forbidden := apierrors.NewForbidden(storagev1.Resource("csidrivers"), csitest.DefaultName, nil)
	cases := map[string]struct {
		reason string
		object *storagev1.CSIDriver
		fault  *kubetest.Fault
		// deleted says that the volume is deleted, and lines is how often the log says that the object cannot be read.
		deleted bool
		lines   int
	}{
		"None":      {reason: "Without an object volumes are attached."},
		"Unset":     {reason: "The default of the field is true.", object: newCSIDriver(nil)},
		"True":      {reason: "Volumes are attached.", object: newCSIDriver(&yes)},
		"False":     {reason: "They are not: no VolumeAttachment is looked at, for which no right is needed.", object: newCSIDriver(&no), deleted: true},
		"Forbidden": {reason: "A role that cannot read the object has the behaviour that it always had.", object: newCSIDriver(&no), fault: &kubetest.Fault{Err: forbidden}, lines: 1},
		"Away": {
			reason: "What the object says is not guessed while the API server is away.", object: newCSIDriver(&no),
			fault: &kubetest.Fault{Err: apierrors.NewServiceUnavailable("away"), Times: 5}, deleted: true, lines: 1,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				objs := attachedVolume()
				if tc.object != nil {
					objs = append(objs, tc.object)
				}
				cluster, driver := kubeapitest.NewCluster(objs...), csitest.New(csitest.Options{})
				driver.AddVolume(csitest.Volume{ID: "vol-a"})
				if tc.fault != nil {
					tc.fault.Verb, tc.fault.Resource = "get", "csidrivers"
					cluster.Inject(*tc.fault)
				}
				if tc.deleted {
					cluster.Fail("list", "volumeattachments", apierrors.NewForbidden(storagev1.Resource("volumeattachments"), "", nil), 0)
				}
				var out strings.Builder
				logger, err := logging.New(logging.NewOptions(), &out)
				if err != nil {
					t.Fatal(err)
				}
				p := launchIn(klog.NewContext(t.Context(), logger), t, "only", cluster, driver, NewOptions())
				pass(time.Minute)
				p.now.Load().end(claim.ErrSucceeded) // the next session reads the object again
				pass(time.Minute)
				p.stop(t)
				if got := len(driver.Volumes()) == 0; got != tc.deleted {
					t.Errorf("%s\nthe volume is deleted: %v, want %v", tc.reason, got, tc.deleted)
				}
				if got := strings.Count(out.String(), "CSIDriver object cannot be read"); got != tc.lines {
					t.Errorf("%s\n%d lines say that the object cannot be read, want %d:\n%s", tc.reason, got, tc.lines, out.String())
				}
			})
		})
	}
}

// TestDriverThatAttachesNothing asks for no right to read CSIDriver objects.
func TestDriverThatAttachesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := kubeapitest.NewCluster()
		cluster.Inject(kubetest.Fault{Resource: "csidrivers", Do: func() { t.Error("the CSIDriver object is read") }})
		p := launch(t, "only", cluster, csitest.New(csitest.Options{Controller: []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME}}), NewOptions())
		pass(time.Minute)
		p.stop(t)
	})
}

// TestAttachRequiredIsReadAgain replaces the CSIDriver object, whose field cannot be changed, while the driver restarts.
func TestAttachRequiredIsReadAgain(t *testing.T) {
	yes, no := true, false
	cluster, driver := kubeapitest.NewCluster(newCSIDriver(&yes)), csitest.New(csitest.Options{})
	path := filepath.Join(t.TempDir(), "csi.sock")
	stop := serveAt(t, driver, path)
	r, p := onSocket(t, cluster, path, withElection())
	r.Eventually("VolumeAttachments are watched", p.watchesAttachments)

	stop()
	apply(t, cluster, newCSIDriver(&no))
	stop = serveAt(t, driver, path)
	r.Eventually("VolumeAttachments are not watched", func() bool { return !p.watchesAttachments() })
	r.Stop()
	stop()
}
