package claim

import (
	stdcmp "cmp"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest/fixtures"
)

// created is a volume as the driver answers it.
func created() *csi.Volume {
	return &csi.Volume{VolumeId: "vol-pvc-uid-1", CapacityBytes: 1 << 30}
}

// asked opens the intent of the test claim's volume, which the driver has made.
func (r *rig) asked() journal.Intent {
	r.T.Helper()
	s := r.claimState(fixtures.Quiet(r.T), keyOf(fixtures.Claim()))
	s.claim, s.class = fixtures.Claim(), fixtures.Class()
	intent, err := r.prepare(fixtures.Quiet(r.T), s)
	if err != nil {
		r.T.Fatal(err)
	}
	if err := r.cfg.Journal.Open(fixtures.Quiet(r.T), intent); err != nil {
		r.T.Fatal(err)
	}
	if _, err := r.backend.Create(fixtures.Quiet(r.T), intent.Request, nil); err != nil {
		r.T.Fatal(err)
	}
	r.Driver.ResetCalls()
	return intent
}

// stage returns the stage of the test claim's volume, "closed" when its fate is settled.
func (r *rig) stage() string {
	intent, ok := r.cfg.Journal.Get("uid-1")
	if !ok {
		return "closed"
	}
	return string(intent.Stage)
}

// stored returns the PersistentVolume that save writes, as another process may have stored it.
func (r *rig) stored(change func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	r.T.Helper()
	pv := fixtures.PV()
	pv.Spec.CSI.VolumeHandle = created().VolumeId
	apply(pv, change)
	return pv
}

func TestSave(t *testing.T) {
	now := metav1.Now()
	invalid := apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("PersistentVolume").GroupKind(), "pvc-uid-1", field.ErrorList{field.Required(field.NewPath("spec", "capacity"), "")})
	denied := apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("PersistentVolume").GroupKind(), "pvc-uid-1", nil)
	denied.ErrStatus.Message, denied.ErrStatus.Details.Causes = "denied by ValidatingAdmissionPolicy: labels are required", []metav1.StatusCause{{Message: "labels are required"}}
	away := apierrors.NewServiceUnavailable("away")
	cases := map[string]struct {
		reason string
		// exists changes a PersistentVolume that is there already.
		exists func(*corev1.PersistentVolume)
		fault  *kubetest.Fault
		stage  string
		event  []string
		// later is the stage after some minutes, if it is another.
		later string
		// undone says that the volume is deleted in the same step, and with what words the claim starts over.
		undone string
	}{
		"Saved": {
			reason: "A volume that is saved is settled.",
			stage:  "closed", event: []string{"Normal ProvisioningSucceeded", "pvc-uid-1"},
		},
		"SavedBefore": {
			reason: "The very same, saved by a process that crashed before it got the answer, is a success.",
			exists: func(*corev1.PersistentVolume) {},
			stage:  "closed", event: []string{"Normal ProvisioningSucceeded"},
		},
		"SavedUnheard": {
			reason: "An answer that got lost is no failure: the volume is left to the queue, and not undone.",
			fault:  &kubetest.Fault{Verb: "create", Resource: "persistentvolumes", Err: away, After: true, Times: 1},
			stage:  "saving", event: []string{"Warning ProvisioningFailed", "is retried"}, later: "closed",
		},
		"Away": {
			reason: "A volume that exists is not given up because the API is away.",
			fault:  &kubetest.Fault{Verb: "create", Resource: "persistentvolumes", Err: away, Times: 1},
			stage:  "saving", event: []string{"Warning ProvisioningFailed", "is retried"}, later: "closed",
		},
		"Forbidden": {
			reason: "Permissions come back without our doing: the volume is kept.",
			fault:  &kubetest.Fault{Verb: "create", Resource: "persistentvolumes", Err: apierrors.NewForbidden(corev1.Resource("persistentvolumes"), "pvc-uid-1", errors.New("no")), Times: 1},
			stage:  "saving", event: []string{"Warning ProvisioningFailed", "forbidden"}, later: "closed",
		},
		"Invalid": {
			reason: "What the API refuses for good is undone.",
			fault:  &kubetest.Fault{Verb: "create", Resource: "persistentvolumes", Err: invalid, Times: 1},
			stage:  "closed", event: []string{"Warning ProvisioningFailed", "refuses"}, undone: "the API refuses",
		},
		"Denied": {
			reason: "An administrator can change the policy that denies it: the volume is kept.",
			fault:  &kubetest.Fault{Verb: "create", Resource: "persistentvolumes", Err: denied, Times: 1},
			stage:  "saving", event: []string{"Warning ProvisioningFailed", "is retried", "labels are required"}, later: "closed",
		},
		"Leaving": {
			reason: "The object of the volume is being deleted: that decides about the volume.",
			exists: func(pv *corev1.PersistentVolume) { pv.DeletionTimestamp = &now },
			stage:  "closed", event: []string{"Warning ProvisioningFailed", "is deleted"},
		},
		"Taken": {
			reason: "The volume is another claim's: it must not be deleted.",
			exists: func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef.UID = "uid-2" },
			stage:  "closed", event: []string{"Warning ProvisioningFailed", "for another claim"},
		},
		"Foreign": {
			reason: "Another volume has the name: ours is surplus.",
			exists: func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = "other" },
			stage:  "closed", event: []string{"Warning ProvisioningFailed", "for another volume"}, undone: "for another volume",
		},
		"UnknownWhy": {
			reason: "As long as nobody knows what is there, nothing is undone.",
			exists: func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = "other" },
			fault:  &kubetest.Fault{Verb: "get", Resource: "persistentvolumes", Err: away, Times: 1},
			stage:  "saving", later: "undoing",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				intent := r.asked()
				if tc.exists != nil {
					if err := r.Cluster.Apply(r.stored(tc.exists)); err != nil {
						t.Fatal(err)
					}
				}
				if tc.fault != nil {
					r.Cluster.Inject(*tc.fault)
				}
				_, err := r.save(fixtures.Quiet(t), intent, created())
				if (err == nil) != (tc.undone == "") || err != nil && !strings.Contains(err.Error(), tc.undone) {
					t.Fatalf("%s\nerror %v, want %q", tc.reason, err, tc.undone)
				}
				if got := r.stage(); got != tc.stage {
					t.Errorf("%s\nstage %s, want %s", tc.reason, got, tc.stage)
				}
				if tc.event != nil {
					fixtures.Contains(t, tc.reason, r.Events.Take(), tc.event...)
				}
				r.saveOn(5*time.Minute, func() {})
				if got := r.stage(); got != stdcmp.Or(tc.later, tc.stage) {
					t.Errorf("%s\nstage %s later, want %s", tc.reason, got, stdcmp.Or(tc.later, tc.stage))
				}
				var calls []string
				if tc.undone != "" {
					calls = []string{"DeleteVolume"}
				}
				if diff := cmp.Diff(calls, r.Calls()); diff != "" {
					t.Errorf("%s\ncalls (-want +got):\n%s", tc.reason, diff)
				}
			}, fixtures.Claim(), fixtures.Class())
		})
	}
}

func TestSaveAgain(t *testing.T) {
	cases := map[string]struct {
		reason string
		// happens comes between the first attempt and the second.
		happens func(t *testing.T, r *rig)
		stage   string
		writes  []string
	}{
		"Wanted": {
			reason:  "The next attempt saves it.",
			happens: func(*testing.T, *rig) {},
			stage:   "closed", writes: []string{"create persistentvolumes pvc-uid-1"},
		},
		"ClaimDeleted": {
			reason:  "Nobody wants a volume that nobody has seen: it is deleted.",
			happens: func(t *testing.T, r *rig) { r.dropClaim() },
			stage:   "undoing",
		},
		"ClaimDeletedButSaved": {
			reason: "The first attempt had succeeded: the PersistentVolume decides about the volume.",
			happens: func(t *testing.T, r *rig) {
				if err := r.Cluster.Apply(r.stored(nil)); err != nil {
					t.Fatal(err)
				}
				r.dropClaim()
			},
			stage: "closed",
		},
		"ClaimDeletedAndAPIAway": {
			reason: "Without an answer of the API nothing is decided.",
			happens: func(t *testing.T, r *rig) {
				r.dropClaim()
				r.Cluster.Fail("get", "persistentvolumes", apierrors.NewServiceUnavailable("away"), 1)
			},
			stage: "saving",
		},
		"Settled": {
			reason: "What is settled meanwhile is left alone.",
			happens: func(_ *testing.T, r *rig) {
				r.cfg.Journal.Close("uid-1")
			},
			stage: "closed",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				r.Cluster.Fail("create", "persistentvolumes", apierrors.NewServiceUnavailable("away"), 1)
				if _, err := r.save(fixtures.Quiet(t), r.asked(), created()); err != nil {
					t.Fatal(err)
				}
				r.Cluster.ResetWrites()
				tc.happens(t, r)
				r.emptyQueues()
				_, err := r.reconcileUnsaved(fixtures.Quiet(t), "uid-1")
				if (err != nil) != (tc.stage == "saving") {
					t.Errorf("%s\nerror %v", tc.reason, err)
				}
				if got := r.stage(); got != tc.stage {
					t.Errorf("%s\nstage %s, want %s", tc.reason, got, tc.stage)
				}
				if got := r.claims.State().Waiting; (got == 1) != (tc.stage == "undoing") {
					t.Errorf("%s\n%d claims wait, want one for a volume that is to be deleted", tc.reason, got)
				}
				if diff := cmp.Diff(tc.writes, r.Writes()); diff != "" {
					t.Errorf("%s\nwrites (-want +got):\n%s", tc.reason, diff)
				}
			}, fixtures.Claim(), fixtures.Class())
		})
	}
}

// dropClaim deletes the test claim.
func (r *rig) dropClaim() {
	r.T.Helper()
	if err := r.Cluster.Remove("persistentvolumeclaims", "team", "data"); err != nil {
		r.T.Fatal(err)
	}
	r.WatchesCatchUp()
}

// TestSaveRefusesBadTopology lets the driver answer a topology that the API would refuse: the volume is
// deleted at once, not saved over and over.
func TestSaveRefusesBadTopology(t *testing.T) {
	settings := rigSettings()
	settings.Topology.Immediate = false // the cluster has no nodes
	onRigWith(t, csitest.Options{Topology: map[string]string{"zone": "a"}}, settings, func(t *testing.T, r *rig) {
		answer := created()
		answer.AccessibleTopology = []*csi.Topology{{Segments: map[string]string{"zone": "not a label"}}}
		_, err := r.save(fixtures.Quiet(t), r.asked(), answer)
		if err == nil || !strings.Contains(err.Error(), "accessible topology") {
			t.Errorf("error %v, want one about the topology, so that the claim starts over after a pause", err)
		}
		if got := r.stage(); got != "closed" {
			t.Errorf("stage %s, want closed", got)
		}
		if diff := cmp.Diff([]string{"DeleteVolume"}, r.Calls()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
		fixtures.Contains(t, "An event reports it.", r.Events.Take(), "Warning ProvisioningFailed", "Deleting the new volume", "accessible topology")
	}, fixtures.Claim(), fixtures.Class())
}
