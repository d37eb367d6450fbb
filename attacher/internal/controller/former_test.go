package controller

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// TestFormerMachine: a volume that may still be attached to the former machine of that name goes to the new
// one only when the driver has let go of the former.
func TestFormerMachine(t *testing.T) {
	tests := map[string]struct {
		reason  string
		answer  error // to ControllerUnpublishVolume from the former machine
		calls   []string
		message string // part of attachError; "": attached
		node    string // that is on record
	}{
		"Undone": {
			reason: "the usual way", calls: []string{"unpublish id-0", "publish id-1"}, node: "id-1",
		},
		"Unknown": {
			reason: "the driver knows no such machine any more", answer: status.Error(codes.NotFound, "no such node"),
			calls: []string{"unpublish id-0", "publish id-1"}, node: "id-1",
		},
		"Refused": {
			reason: "two machines would write to one file system", answer: status.Error(codes.FailedPrecondition, "in use"),
			calls: []string{"unpublish id-0"}, message: "FailedPrecondition: in use", node: "id-0",
		},
		"Uncertain": {
			reason: "no answer is no proof", answer: status.Error(codes.DeadlineExceeded, "late"),
			calls: []string{"unpublish id-0"}, message: "DeadlineExceeded: late", node: "id-0",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, freshPV(), newCSINode(testDriver, "id-1"))
				defer b.stop()
				var calls []string
				b.driver.unpublish = func(r *csi.ControllerUnpublishVolumeRequest) error {
					calls = append(calls, "unpublish "+r.GetNodeId())
					return tt.answer
				}
				b.driver.publish = func(r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
					calls = append(calls, "publish "+r.GetNodeId())
					return &csi.ControllerPublishVolumeResponse{}, nil
				}
				b.apply(fresh(vaFinalized, vaAnnotated(AnnotationNodeID, "id-0", AnnotationVolumeHandle, "vol-1")))
				pass(500 * time.Millisecond)
				synctest.Wait()
				if !slices.Equal(calls, tt.calls) {
					t.Errorf("%s: calls %q, want %q", tt.reason, calls, tt.calls)
				}
				va := b.get("va-1")
				if va.Status.Attached != (tt.message == "") || va.Annotations[AnnotationNodeID] != tt.node {
					t.Errorf("%s: attached %t, node ID on record %q, want %q", tt.reason, va.Status.Attached, va.Annotations[AnnotationNodeID], tt.node)
				}
				if failure := va.Status.AttachError; failure != nil && !strings.Contains(failure.Message, tt.message) {
					t.Errorf("%s: attachError %q, want %q in it", tt.reason, failure.Message, tt.message)
				}
			})
		})
	}
}

// TestGoneWhileReleasing: an object that vanishes while its finalizer is removed is what was wanted.
func TestGoneWhileReleasing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, freshPV(), newCSINode(testDriver, "id-1"), fresh(vaFinalized, vaAttached))
		defer b.stop()
		b.cluster.Inject(kubetest.Fault{
			Verb: "patch", Resource: "volumeattachments", After: true,
			Err: apierrors.NewNotFound(storagev1.Resource("volumeattachments"), "va-1"),
		})
		b.remove("va-1")
		pass(time.Minute)
		if b.exists("va-1") {
			t.Error("the finalizer is still there")
		}
		if notes := b.notes.read(); len(notes) > 0 {
			t.Errorf("events %q about an object that is gone", notes)
		}
	})
}

// TestVolumeNotInCache attaches a volume that the watch has not brought yet: the server is asked.
func TestVolumeNotInCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, newCSINode(testDriver, "id-1"))
		defer b.stop()
		synctest.Wait()
		for _, verb := range []string{"watch", "list"} {
			b.cluster.Inject(kubetest.Fault{Verb: verb, Resource: "persistentvolumes", Err: apierrors.NewServiceUnavailable("away")})
		}
		b.cluster.BreakWatches()
		if _, err := b.cluster.Client().PersistentVolumes().Create(t.Context(), freshPV(), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, cached := b.pvs.Get("", "pv-1"); cached {
			t.Fatal("the cache has the volume, which this test is not about")
		}
		b.apply(fresh())
		pass(time.Minute)
		if va := b.get("va-1"); !va.Status.Attached {
			t.Errorf("not attached: %+v", va.Status)
		}
	})
}

func TestDetachedPatch(t *testing.T) {
	const detached = `[{"op":"test","path":"/metadata/uid","value":"va-uid"},{"op":"add","path":"/status","value":{"attached":false}}]`
	detachError := func(va *storagev1.VolumeAttachment) { va.Status.DetachError = &storagev1.VolumeError{Message: "x"} }
	tests := map[string]struct {
		reason string
		va     *storagev1.VolumeAttachment
		want   string
	}{
		"Attached":    {reason: "nobody may believe it any more", va: newVA(vaAttached), want: detached},
		"DetachError": {reason: "the error goes with success", va: newVA(detachError), want: detached},
		"Both":        {reason: "in one write", va: newVA(vaAttached, detachError), want: detached},
		"Neither":     {reason: "nothing new, no write", va: newVA()},
		"AttachError": {reason: "why it could not be attached stays readable", va: newVA(vaAttachError("x"))},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got, err := detachedPatch(tt.va); err != nil || string(got) != tt.want {
				t.Errorf("%s: got %s, %v, want %s", tt.reason, got, err, tt.want)
			}
		})
	}
}

func TestStepNames(t *testing.T) {
	for s, want := range map[step]string{stepNone: "none", stepAttach: "attach", stepDetach: "detach", step(-1): "none"} {
		if got := s.String(); got != want {
			t.Errorf("step %d is called %q, want %q", int(s), got, want)
		}
	}
}
