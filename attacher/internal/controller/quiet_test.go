package controller

import (
	"errors"
	"net"
	"net/url"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// TestNothingToReport has writes that fail for reasons that users can do nothing about: neither the status nor an event mentions them.
func TestNothingToReport(t *testing.T) {
	refused := &url.Error{Op: "Patch", URL: "https://10.0.0.1/", Err: &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}}
	tests := map[string]struct {
		reason   string
		resource string
		err      error
	}{
		"AttachmentGone": {reason: "deleted, and the watch is late", resource: "volumeattachments", err: apierrors.NewNotFound(storagev1.Resource("volumeattachments"), "va-1")},
		"VolumeGone":     {reason: "deleted, and the watch is late", resource: "persistentvolumes", err: apierrors.NewNotFound(corev1.Resource("persistentvolumes"), "pv-1")},
		"Refused":        {reason: "the API server restarts", resource: "volumeattachments", err: refused},
		"Unavailable":    {reason: "the API server says so", resource: "volumeattachments", err: apierrors.NewServiceUnavailable("away")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, freshPV(), newCSINode(testDriver, "id-1"))
				defer b.stop()
				b.cluster.Inject(kubetest.Fault{Verb: "patch", Resource: tt.resource, Err: tt.err, Times: 3})
				b.apply(fresh())
				pass(30 * time.Second)
				if va := b.get("va-1"); !va.Status.Attached {
					t.Errorf("%s: not attached after the fault: %+v", tt.reason, va.Status)
				}
				if notes := b.notes.read(); len(notes) > 0 {
					t.Errorf("%s: events %q", tt.reason, notes)
				}
			})
		})
	}
}

// TestMissingSecretIsReported: not every 404 is the end of the object.
func TestMissingSecretIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, freshPV(pvSecret("ns", "keys")), newCSINode(testDriver, "id-1"), fresh())
		defer b.stop()
		pass(time.Second)
		if len(b.notes.read()) == 0 || b.get("va-1").Status.AttachError == nil {
			t.Error("a missing secret is for users to create")
		}
	})
}

// TestConflictForms has the answers by which API servers refuse a patch because the object has another UID.
func TestConflictForms(t *testing.T) {
	other := newVA(vaUID("other"))
	patch, err := metadataPatch(other, withFinalizer(testFinalizer))
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.stop()
		b.apply(fresh())
		_, err := b.patchVA(t.Context(), other, patch)
		if !apierrors.IsConflict(err) {
			t.Errorf("patch of a re-created object: %v, want a conflict", err)
		}
		if errors.Is(err, kube.ErrGone) {
			t.Errorf("a re-created object is not gone: %v", err)
		}
	})
}
