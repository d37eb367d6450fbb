package release

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/longshore-csi/longshore/csikit/outcome"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/provisioner/internal/backend"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest/fixtures"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// TestDeleteVolumeRequest checks with what DeleteVolume is called.
func TestDeleteVolumeRequest(t *testing.T) {
	recorded := fixtures.Annotated(volume.AnnDeletionSecretName, "own", volume.AnnDeletionSecretNamespace, "vault")
	cases := map[string]struct {
		reason string
		pv     *corev1.PersistentVolume
		others []runtime.Object
		want   map[string]string
		err    string
	}{
		"NoSecret": {
			reason: "Most drivers need none.",
			pv:     fixtures.ReleasedPV(), others: []runtime.Object{fixtures.Class()},
		},
		"Recorded": {
			reason: "The secret that the volume was made with counts, whatever the class says now.",
			pv:     fixtures.ReleasedPV(recorded), others: []runtime.Object{fixtures.SecretClass("other"), fixtures.Secret("vault", "own", "ann")},
			want: map[string]string{"user": "ann"},
		},
		"RecordedNoClass": {
			reason: "The class may be gone.",
			pv:     fixtures.ReleasedPV(recorded), others: []runtime.Object{fixtures.Secret("vault", "own", "ann")},
			want: map[string]string{"user": "ann"},
		},
		"RecordedNoSecret": {
			reason: "A secret that is gone does not keep the volume: the driver decides.",
			pv:     fixtures.ReleasedPV(recorded),
		},
		"RecordedNone": {
			reason: "A volume that was made without a secret is deleted without one, whatever the class says now.",
			pv:     fixtures.ReleasedPV(fixtures.Annotated(volume.AnnDeletionSecretName, "", volume.AnnDeletionSecretNamespace, "")),
			others: []runtime.Object{fixtures.SecretClass("other"), fixtures.Secret("team", "other", "ann")},
		},
		"FromClass": {
			reason: "Volumes without a record get the secret of their class, for their claim.",
			pv:     fixtures.ReleasedPV(), others: []runtime.Object{fixtures.SecretClass("of-${pvc.name}"), fixtures.Secret("team", "of-data", "bob")},
			want: map[string]string{"user": "bob"},
		},
		"BetaClass": {
			reason: "The annotation names the class that counts.",
			pv:     fixtures.ReleasedPV(fixtures.Annotated(view.AnnBetaClass, "fast"), func(pv *corev1.PersistentVolume) { pv.Spec.StorageClassName = "gone" }),
			others: []runtime.Object{fixtures.SecretClass("plain"), fixtures.Secret("team", "plain", "eve")},
			want:   map[string]string{"user": "eve"},
		},
		"Unresolvable": {
			reason: "A template with annotations of the claim cannot be resolved any more: an event says what to do.",
			pv:     fixtures.ReleasedPV(), others: []runtime.Object{fixtures.SecretClass("${pvc.annotations['a']}")},
			err: volume.AnnDeletionSecretName,
		},
		"BinarySecret": {
			reason: "A value that is no text cannot be sent, and is never shown.",
			pv:     fixtures.ReleasedPV(recorded), others: []runtime.Object{fixtures.Secret("vault", "own", "\xff\xfe")},
			err: "UTF-8",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				_, err := r.reconcile(fixtures.Quiet(t), tc.pv.Name)
				if tc.err != "" {
					if err == nil || !strings.Contains(err.Error(), tc.err) {
						t.Errorf("%s\nerror %v, want it to contain %q", tc.reason, err, tc.err)
					}
					fixtures.Contains(t, tc.reason, r.Events.Take(), "Warning VolumeFailedDelete", tc.err)
					if calls := r.Calls(); calls != nil {
						t.Errorf("%s\ncalls %q, want none", tc.reason, calls)
					}
					return
				}
				if err != nil {
					t.Fatalf("%s\n%v", tc.reason, err)
				}
				request := r.deleteRequest()
				if request.GetVolumeId() != "vol-1" {
					t.Errorf("%s\nvolume ID %q, want the handle of the PersistentVolume", tc.reason, request.GetVolumeId())
				}
				if diff := cmp.Diff(tc.want, request.GetSecrets()); diff != "" {
					t.Errorf("%s\nsecrets (-want +got):\n%s", tc.reason, diff)
				}
				if left := r.StoredPV(); left.DeletionTimestamp == nil || hasFinalizer(left) {
					t.Errorf("%s\nPersistentVolume %v, want one that only the finalizer of another keeps", tc.reason, left)
				}
			}, append(tc.others, tc.pv)...)
		})
	}
}

// TestDeleteSteps goes through deletion with a failure in each step: what is done is not done again.
func TestDeleteSteps(t *testing.T) {
	away := apierrors.NewServiceUnavailable("away")
	const patch, remove = "patch persistentvolumes pvc-uid-1", "delete persistentvolumes pvc-uid-1"
	cases := map[string]struct {
		reason string
		fail   func(r *rig)
		pv     *corev1.PersistentVolume
		first  outcome.Class
		calls  int
		writes []string
	}{
		"Straight": {
			reason: "The finalizer goes, then the object: two writes.",
			calls:  1, writes: []string{patch, remove},
		},
		"DriverFails": {
			reason: "A volume that is not deleted keeps its object and its finalizer.",
			fail: func(r *rig) {
				r.Driver.Inject(csitest.Fault{Method: "DeleteVolume", Code: codes.Internal, Times: 1})
			},
			first: outcome.Final, calls: 2, writes: []string{patch, remove},
		},
		"PatchFails": {
			reason: "The driver is not asked again because the API failed.",
			fail:   func(r *rig) { r.Cluster.Fail("patch", "persistentvolumes", away, 1) },
			first:  outcome.Uncertain, calls: 1, writes: []string{patch + " failed", patch, remove},
		},
		"DeleteFails": {
			reason: "Neither the driver nor the patch is repeated because the deletion failed.",
			fail:   func(r *rig) { r.Cluster.Fail("delete", "persistentvolumes", away, 1) },
			first:  outcome.Uncertain, calls: 1, writes: []string{patch, remove + " failed", remove},
		},
		"DeletedFirst": {
			reason: "An object that is being deleted already needs no second deletion.",
			pv:     fixtures.ReleasedPV(func(pv *corev1.PersistentVolume) { now := metav1.Now(); pv.DeletionTimestamp = &now }),
			calls:  1, writes: []string{patch},
		},
		"Unprotected": {
			reason: "An object from before the finalizer needs no patch.",
			pv:     fixtures.ReleasedPV(func(pv *corev1.PersistentVolume) { pv.Finalizers = nil }),
			calls:  1, writes: []string{remove},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pv := tc.pv
			if pv == nil {
				pv = fixtures.ReleasedPV()
				pv.Finalizers = []string{volume.Finalizer}
			}
			onRig(t, func(t *testing.T, r *rig) {
				if tc.fail != nil {
					tc.fail(r)
				}
				_, err := r.reconcile(fixtures.Quiet(t), pv.Name)
				if got := outcome.Of(err); got != tc.first {
					t.Errorf("%s\nfirst attempt ends with %s (%v), want %s", tc.reason, got, err, tc.first)
				}
				for range 3 {
					r.WatchesCatchUp()
					r.step(pv.Name)
				}
				if got := len(r.Calls()); got != tc.calls {
					t.Errorf("%s\n%d calls of DeleteVolume, want %d", tc.reason, got, tc.calls)
				}
				if diff := cmp.Diff(tc.writes, r.Writes()); diff != "" {
					t.Errorf("%s\nwrites (-want +got):\n%s", tc.reason, diff)
				}
			}, pv)
		})
	}
}

// TestDeleteSparesTheSuccessor deletes an object whose name another has taken meanwhile.
func TestDeleteSparesTheSuccessor(t *testing.T) {
	successor := fixtures.PV()
	successor.UID = "pv-2"
	onRig(t, func(t *testing.T, r *rig) {
		if err := r.deleteObject(fixtures.Quiet(t), fixtures.ReleasedPV()); err == nil {
			t.Error("no error, the successor was deleted")
		}
		if left := r.StoredPV(); left == nil || left.DeletionTimestamp != nil {
			t.Errorf("successor %v, want it untouched", left)
		}
	}, successor)
}

// attachmentOf returns the attachment of the test volume to a node.
func attachmentOf(node string) *storagev1.VolumeAttachment {
	name := "pvc-uid-1"
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "csi-" + node},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: driver, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &name}},
	}
}

// TestObjectIsKept deletes a volume whose PersistentVolume the provisioner may not change, or whose deletion a policy denies: an event says so, and the volume is
// deleted once.
func TestObjectIsKept(t *testing.T) {
	for verb, refusal := range map[string]error{
		"patch":  apierrors.NewForbidden(corev1.Resource("persistentvolumes"), "pvc-uid-1", errors.New("no patch")),
		"delete": apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("PersistentVolume").GroupKind(), "pvc-uid-1", nil),
	} {
		t.Run(verb, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				r.Cluster.Fail(verb, "persistentvolumes", refusal, 3)
				for range 3 {
					if _, err := r.reconcile(fixtures.Quiet(t), "pvc-uid-1"); err == nil {
						t.Error("no error, so that nothing tries again")
					}
					fixtures.Contains(t, "An administrator has to act.", r.Events.Take(), "Warning VolumeFailedDelete", "its PersistentVolume is not")
				}
				r.step("pvc-uid-1")
				if calls := r.Calls(); len(calls) != 1 {
					t.Errorf("calls %q, want one of DeleteVolume", calls)
				}
			}, fixtures.ReleasedPV(), fixtures.Class())
		})
	}
}

// TestWaitForDetach deletes a volume that two nodes have attached.
func TestWaitForDetach(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		result, err := r.reconcile(fixtures.Quiet(t), "pvc-uid-1")
		if err != nil || result.After != detachGrace {
			t.Errorf("result %+v, %v, want another look after %v", result, err, detachGrace)
		}
		if lines := r.Events.Take(); lines != nil {
			t.Errorf("events %q: a short wait is the normal course of things", lines)
		}
		time.Sleep(detachGrace / 2)
		if result, _ = r.reconcile(fixtures.Quiet(t), "pvc-uid-1"); result.After != detachGrace/2 {
			t.Errorf("another look after %v, want %v: the grace is counted from the first look", result.After, detachGrace/2)
		}
		time.Sleep(detachGrace)
		if result, _ = r.reconcile(fixtures.Quiet(t), "pvc-uid-1"); result.After != 0 {
			t.Errorf("another look after %v, want none: the end of the attachment is an event", result.After)
		}
		fixtures.Contains(t, "An event names the VolumeAttachments and their nodes.", r.Events.Take(), "Normal VolumeDelete", `VolumeAttachment csi-node-1 on node "node-1", VolumeAttachment csi-node-2 on node "node-2"`)

		for _, name := range []string{"csi-node-1", "csi-node-2"} {
			if calls := r.Calls(); calls != nil {
				t.Fatalf("calls %q while a node has the volume", calls)
			}
			if err := r.Cluster.Remove("volumeattachments", "", name); err != nil {
				t.Fatal(err)
			}
			r.WatchesCatchUp()
			r.step("pvc-uid-1")
		}
		if diff := cmp.Diff([]string{"DeleteVolume"}, r.Calls()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	}, fixtures.ReleasedPV(), attachmentOf("node-1"), attachmentOf("node-2"))
}

// TestRefusedDeletion records events on volumes that this driver cannot delete.
func TestRefusedDeletion(t *testing.T) {
	none := csitest.Options{Controller: []csi.ControllerServiceCapability_RPC_Type{}}
	onRigWith(t, none, func(t *testing.T, r *rig) {
		r.step("pvc-uid-1")
		fixtures.Contains(t, "The missing capability is named.", r.Events.Take(), "Warning VolumeFailedDelete", "CREATE_DELETE_VOLUME")
		if calls := r.Calls(); calls != nil {
			t.Errorf("calls %q, want none", calls)
		}
	}, fixtures.ReleasedPV())
}

// TestDeletionErrorsAreTyped keeps the class of a driver's error through all wrapping.
func TestDeletionErrorsAreTyped(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.Driver.Inject(csitest.Fault{Method: "DeleteVolume", Code: codes.FailedPrecondition, Message: "in use"})
		err := r.deleteVolume(fixtures.Quiet(t), fixtures.ReleasedPV())
		var call backend.Error
		if !errors.As(err, &call) || outcome.Code(err) != codes.FailedPrecondition {
			t.Errorf("error %v, want a call error with the code of the driver", err)
		}
		fixtures.Contains(t, "The user reads what the driver said.", r.Events.Take(), `delete volume "vol-1": FailedPrecondition: in use`)
	})
}

// TestUnreadableSecretKeptTheVolume has a secret that the provisioner may not read: the driver decides whether it needs one.
// An API server that is away is another matter: the secret is read again.
func TestUnreadableSecretKeptTheVolume(t *testing.T) {
	cases := map[string]struct {
		reason string
		err    error
		calls  int
	}{
		"Forbidden": {reason: "DeleteVolume is called without the secret.", err: apierrors.NewForbidden(corev1.Resource("secrets"), "own", nil), calls: 1},
		"Away":      {reason: "The secret may be there.", err: apierrors.NewServiceUnavailable("away")},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pv := fixtures.ReleasedPV(fixtures.Annotated(volume.AnnDeletionSecretName, "own", volume.AnnDeletionSecretNamespace, "vault"))
			onRig(t, func(t *testing.T, r *rig) {
				r.Cluster.Fail("get", "secrets", tc.err, 1)
				_, err := r.reconcile(fixtures.Quiet(t), pv.Name)
				if got := len(r.Calls()); got != tc.calls || (err == nil) != (tc.calls > 0) {
					t.Errorf("%s\n%d calls, error %v, want %d calls", tc.reason, got, err, tc.calls)
				}
			}, pv, fixtures.Secret("vault", "own", "ann"))
		})
	}
}
