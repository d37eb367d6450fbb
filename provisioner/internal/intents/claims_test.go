package intents

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/container-storage-interface/spec/lib/go/csi"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// live returns a claim as the cluster has it, nil when it is gone.
func live(t *testing.T, cluster *kubetest.Cluster, name string) *corev1.PersistentVolumeClaim {
	t.Helper()
	for _, object := range cluster.Objects("persistentvolumeclaims") {
		if claim, ok := object.(*corev1.PersistentVolumeClaim); ok && claim.Name == name {
			return claim
		}
	}
	return nil
}

func TestClaimsAreAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var objs []runtime.Object
		for _, uid := range []string{"a", "b"} {
			claim := newIntent(uid, Creating).Spec.Claim
			objs = append(objs, claim.DeepCopy())
		}
		testStore(t, NewClaims(kubetest.New(objs...).Client().PersistentVolumeClaims, ""))
	})
}

// TestClaimsOutliveTheProcess has one store write a record, and another go on with it.
func TestClaimsOutliveTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		intent := full(t, longUID(1), 5000)
		before := intent.Spec.Claim.DeepCopy()
		before.Finalizers = []string{"kubernetes.io/pvc-protection"}
		cluster := kubetest.New(before.DeepCopy())
		one := NewClaims(cluster.Client().PersistentVolumeClaims, "")
		var written []*corev1.PersistentVolumeClaim
		one.Follow(func(claim *corev1.PersistentVolumeClaim) { written = append(written, claim) })
		if err := one.Open(quiet(t), intent); err != nil {
			t.Fatal(err)
		}
		recorded := live(t, cluster, before.Name)
		if !Recorded(recorded) || len(written) != 1 || !Recorded(written[0]) || !one.Durable() {
			t.Fatalf("the claim has finalizers %q, %d claims were passed on", recorded.Finalizers, len(written))
		}

		two := NewClaims(cluster.Client().PersistentVolumeClaims, "")
		got, ok := two.Recover(quiet(t), recorded)
		if !ok || !got.Recovered || !got.Unknown() || got.Spec.Name != intent.Spec.Name || *got.Spec.Secrets.Provision != *intent.Spec.Secrets.Provision {
			t.Errorf("recovered %v: %+v", ok, got)
		}
		if _, ok := two.Get(intent.UID()); !ok {
			t.Error("the recovered intent is not open")
		}
		if err := two.Close(quiet(t), intent.UID()); err != nil {
			t.Fatal(err)
		}
		after := live(t, cluster, before.Name)
		if Recorded(after) || after.Annotations[Annotation] != "" || !slices.Equal(after.Finalizers, before.Finalizers) {
			t.Errorf("the claim keeps finalizers %q, annotations %q", after.Finalizers, after.Annotations)
		}
	})
}

// TestClaimsFaults has a case for each answer of the API to Open, and then to Close.
func TestClaimsFaults(t *testing.T) {
	old := metav1.Unix(0, 0)
	away := apierrors.NewServiceUnavailable("away")
	forbidden := apierrors.NewForbidden(corev1.Resource("persistentvolumeclaims"), "data", nil)
	cases := map[string]struct {
		reason string
		change func(*corev1.PersistentVolumeClaim)
		fault  *kubetest.Fault
		err    error
		// open says that there is an intent, recorded that the claim says so, and volatile that the store is not durable.
		open, recorded, volatile bool
	}{
		"Stored":   {reason: "A claim gets its record.", open: true, recorded: true},
		"Conflict": {reason: "Another writer was faster.", fault: &kubetest.Fault{Verb: "update", Err: apierrors.NewConflict(corev1.Resource("persistentvolumeclaims"), "data", nil), Times: 2}, open: true, recorded: true},
		"Away":     {reason: "Without a record no volume is asked for.", fault: &kubetest.Fault{Verb: "update", Err: away, Times: 1}, err: away},
		"Unread":   {reason: "Nor without the claim.", fault: &kubetest.Fault{Verb: "get", Err: away, Times: 1}, err: away},
		"Forbidden": {
			reason: "Without the permission there is no record, as before there were any.",
			fault:  &kubetest.Fault{Verb: "update", Err: forbidden, Times: 1}, open: true, volatile: true,
		},
		"Replaced": {reason: "Its successor is another claim.", change: func(c *corev1.PersistentVolumeClaim) { c.UID = "other" }, err: errGone},
		"Leaving": {
			reason: "A claim that is being deleted can have no record, and may vanish at any moment, however long it was kept for a pod.",
			change: func(c *corev1.PersistentVolumeClaim) {
				c.DeletionTimestamp, c.Finalizers = &old, []string{"kubernetes.io/pvc-protection"}
			}, err: errLeaving,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				intent := full(t, longUID(1), 1)
				claim := intent.Spec.Claim.DeepCopy()
				if tc.change != nil {
					tc.change(claim)
				}
				cluster := kubetest.New(claim)
				store := NewClaims(cluster.Client().PersistentVolumeClaims, "")
				if tc.fault != nil {
					tc.fault.Resource = "persistentvolumeclaims"
					cluster.Inject(*tc.fault)
				}
				if err := store.Open(quiet(t), intent); !errors.Is(err, tc.err) || (err == nil) != (tc.err == nil) {
					t.Errorf("%s\nerror %v, want %v", tc.reason, err, tc.err)
				}
				_, open := store.Get(intent.UID())
				if recorded := Recorded(live(t, cluster, claim.Name)); open != tc.open || recorded != tc.recorded || store.Durable() == tc.volatile {
					t.Errorf("%s\nopen %v, recorded %v, durable %v", tc.reason, open, recorded, store.Durable())
				}
				cluster.Fail("update", "persistentvolumeclaims", away, 1)
				if err := store.Close(quiet(t), intent.UID()); (err != nil) != tc.recorded {
					t.Errorf("%s\nclose while the API is away: %v", tc.reason, err)
				}
				if _, open := store.Get(intent.UID()); open != tc.recorded {
					t.Errorf("%s\nthe intent of a claim that could not be written is open: %v", tc.reason, open)
				}
				cluster.Heal()
				if err := store.Close(quiet(t), intent.UID()); err != nil || Recorded(live(t, cluster, claim.Name)) {
					t.Errorf("%s\nclose: %v", tc.reason, err)
				}
			})
		})
	}
}

// TestClaimsUnreadable finds a finalizer without a record that this version can read.
func TestClaimsUnreadable(t *testing.T) {
	for name, text := range map[string]string{"None": "", "Version": `{"version":7}`, "Other": `{"version":1,"records":[{"uid":"u","volume":"v","request":"0a"}]}`} {
		t.Run(name, func(t *testing.T) {
			claim := full(t, longUID(1), 1).Spec.Claim
			claim.Finalizers, claim.Annotations = []string{volume.FinalizerInProgress}, map[string]string{Annotation: text}
			store := NewClaims(kubetest.New().Client().PersistentVolumeClaims, "")
			if intent, ok := store.Recover(quiet(t), claim); ok {
				t.Errorf("recovered %+v", intent)
			}
		})
	}
}

// TestJournalFinishesRecordsOnClaims has an instance with an election go on with what one without has left on a claim.
func TestJournalFinishesRecordsOnClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		intent := newIntent("a", Creating)
		cluster := kubetest.New(intent.Spec.Claim.DeepCopy())
		api := cluster.Client().PersistentVolumeClaims
		if err := NewClaims(api, "").Open(quiet(t), intent); err != nil {
			t.Fatal(err)
		}
		name := intent.Spec.Claim.Name
		journal := NewJournal(NewClaims(api, ""))
		stop, err := journal.Start(quiet(t), JournalConfig{Leases: cluster.Client().Leases("storage"), Name: "driver", Identity: "one"})
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		if _, ok := journal.Recover(quiet(t), live(t, cluster, name)); !ok {
			t.Fatal("the record on the claim is not read")
		}
		if err := journal.Close(quiet(t), "a"); err != nil {
			t.Fatal(err)
		}
		if Recorded(live(t, cluster, name)) {
			t.Error("the claim keeps its record")
		}
	})
}

// TestElectionSwitchedOff has an instance without an election go on with what one with an election has left in Leases. Its own records are
// on claims, and the instance before, should it still run, asks for no volume any more.
func TestElectionSwitchedOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left, next := newIntent("a", Creating), newIntent("b", Creating)
		cluster := kubetest.New(left.Spec.Claim.DeepCopy(), next.Spec.Claim.DeepCopy())
		before, stopBefore := open(t, cluster, "before")
		defer stopBefore()
		if err := before.Open(quiet(t), left); err != nil {
			t.Fatal(err)
		}
		journal, stop := finish(t, cluster)
		if _, ok := journal.Get("a"); !ok {
			t.Fatal("the record in a Lease is not read")
		}
		if err := before.Open(quiet(t), full(t, longUID(9), 1)); !errors.Is(err, ErrSuperseded) {
			t.Errorf("the instance before stores a record: %v, want %v", err, ErrSuperseded)
		}
		if err := journal.Open(quiet(t), next); err != nil || !Recorded(live(t, cluster, next.Spec.Claim.Name)) || !journal.Durable() {
			t.Errorf("error %v, want a record on the claim", err)
		}
		if err := errors.Join(journal.Close(quiet(t), "a"), journal.Close(quiet(t), "b")); err != nil {
			t.Fatal(err)
		}
		stop()
		if got := stored(t, cluster); len(got) > 0 || Recorded(live(t, cluster, next.Spec.Claim.Name)) {
			t.Errorf("records of %v are left", got)
		}
		cluster.ResetWrites()
		_, stop = finish(t, cluster)
		stop()
		if got := cluster.Writes(); len(got) > 0 {
			t.Errorf("without records %v are written", got)
		}
	})
}

// TestNoElection has an instance without an election start where it may use no Leases, or there are none.
func TestNoElection(t *testing.T) {
	for name, fault := range map[string]kubetest.Fault{
		"NoLeases":  {Verb: "none"},
		"Forbidden": {Resource: "leases", Err: apierrors.NewForbidden(coordinationv1.Resource("leases"), "driver-journal-0", nil)},
		"AwayFirst": {Resource: "leases", Err: apierrors.NewServiceUnavailable("away"), Times: 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				intent := newIntent("a", Creating)
				cluster := kubetest.New(intent.Spec.Claim.DeepCopy())
				cluster.Inject(fault)
				journal, stop := finish(t, cluster)
				defer stop()
				if err := journal.Open(quiet(t), intent); err != nil || !Recorded(live(t, cluster, intent.Spec.Claim.Name)) {
					t.Errorf("error %v, want a record on the claim", err)
				}
			})
		})
	}
}

// finish starts an instance without an election.
func finish(t *testing.T, cluster *kubetest.Cluster) (*Journal, func()) {
	t.Helper()
	journal := NewJournal(NewClaims(cluster.Client().PersistentVolumeClaims, ""))
	stop, err := journal.Finish(quiet(t), configOf(cluster, "without"))
	if err != nil {
		t.Fatal(err)
	}
	return journal, stop
}

// TestRecordsOfNodes has the instances of two nodes leave records on one claim: each goes on with its own, and the claim is let go
// with the last.
func TestRecordsOfNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		intent := newIntent("a", Creating)
		intent.Request = &csi.CreateVolumeRequest{Name: intent.Spec.Name}
		intent.Request.AccessibilityRequirements = &csi.TopologyRequirement{Preferred: []*csi.Topology{{Segments: map[string]string{"zone": "z1"}}}}
		cluster := kubetest.New(intent.Spec.Claim.DeepCopy())
		api, name := cluster.Client().PersistentVolumeClaims, intent.Spec.Claim.Name
		stores := map[string]*Claims{"n1": NewClaims(api, "n1"), "n2": NewClaims(api, "n2"), "": NewClaims(api, "")}
		for _, node := range []string{"n1", "n2"} {
			if err := stores[node].Open(quiet(t), intent); err != nil {
				t.Fatal(err)
			}
		}
		if owners, err := Owners(live(t, cluster, name)); err != nil || len(owners) != 2 || !slices.Contains(owners, "n1") || !slices.Contains(owners, "n2") {
			t.Fatalf("records of %q, error %v, want those of n1 and n2", owners, err)
		}
		if segment, err := Segment(live(t, cluster, name), "n1"); err != nil || segment["zone"] != "z1" {
			t.Errorf("segment %v, error %v, want zone z1", segment, err)
		}
		if err := stores["n1"].Close(quiet(t), "a"); err != nil || !Recorded(live(t, cluster, name)) {
			t.Fatalf("after n1 has ended its own: error %v, recorded %v, want the record of n2", err, Recorded(live(t, cluster, name)))
		}
		if _, ok := NewClaims(api, "n1").Recover(quiet(t), live(t, cluster, name)); ok {
			t.Error("n1 goes on with the record of n2")
		}
		if _, ok := stores[""].Recover(quiet(t), live(t, cluster, name)); !ok {
			t.Error("an instance for the whole cluster does not go on with the record of n2")
		}
		if err := stores[""].Close(quiet(t), "a"); err != nil || Recorded(live(t, cluster, name)) {
			t.Errorf("error %v, recorded %v, want no record", err, Recorded(live(t, cluster, name)))
		}
	})
}

// TestCopiedRecord has a claim with the annotation of another one, as tools for backups leave it.
func TestCopiedRecord(t *testing.T) {
	first, second := newIntent("a", Creating), newIntent("b", Creating)
	r, shared, err := recordOf(first, "")
	if err != nil {
		t.Fatal(err)
	}
	copied := second.Spec.Claim.DeepCopy()
	text, err := encode([]record{r}, shared)
	if err != nil {
		t.Fatal(err)
	}
	copied.Annotations = map[string]string{Annotation: text}
	r, shared, err = recordOf(second, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := addRecord(copied, r, shared); err != nil {
		t.Fatal(err)
	}
	if owners, err := Owners(copied); err != nil || len(owners) != 1 {
		t.Errorf("records of %q, error %v, want one", owners, err)
	}
}
