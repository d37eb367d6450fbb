package controller

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/provisioner/internal/intents"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

// onZones runs three nodes with records on claims: a1 and a2 have the same storage, b has another.
func onZones(t *testing.T, play func(f *fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		class := newClass()
		late(class)
		f := &fleet{chaos: &chaos{t: t, cluster: kubetest.New(class)}, base: 20 * time.Second, nodes: map[string]*member{}, recorded: true}
		shared := csitest.New(csitest.Options{NodeID: "a", Topology: map[string]string{"node": "a"}})
		f.nodes["a1"], f.nodes["a2"] = &member{driver: shared, segment: "a"}, &member{driver: shared, segment: "a"}
		f.nodes["b"] = &member{driver: csitest.New(csitest.Options{NodeID: "b", Topology: map[string]string{"node": "b"}})}
		for name := range f.nodes {
			f.apply(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
			f.start(name)
		}
		synctest.Wait()
		play(f)
		for _, name := range f.names() {
			f.stop(name)
		}
	})
}

// only returns the claim, nil once it is gone.
func (f *fleet) only() *corev1.PersistentVolumeClaim {
	for _, obj := range f.cluster.Objects("persistentvolumeclaims") {
		if claim, ok := obj.(*corev1.PersistentVolumeClaim); ok {
			return claim
		}
	}
	return nil
}

// choose selects a node for the claim.
func (f *fleet) choose(node string) {
	claim := f.only()
	claim.Annotations[view.AnnSelectedNode] = node
	f.apply(claim)
}

// TestRecordsOfLostNodes kills the instance of a node that has made a volume and does not know it.
func TestRecordsOfLostNodes(t *testing.T) {
	deleted := func(f *fleet) { f.remove("persistentvolumeclaims", "team", "data") }
	kept := func(*fleet) {}
	type state struct {
		Claim, Recorded, Selected bool
		Volumes, PVs, Drops       int
	}
	cases := map[string]struct {
		reason string
		node   string
		then   func(*fleet)
		// stays says that the Node object is still there.
		stays bool
		want  state
	}{
		"Shared":        {reason: "a2 reaches the volume: the claim gets it.", node: "a1", then: kept, want: state{Claim: true, Volumes: 1, PVs: 1, Drops: 1}},
		"SharedDeleted": {reason: "a2 deletes the volume, and the claim is let go.", node: "a1", then: deleted, want: state{Drops: 1}},
		"Own":           {reason: "No other node reaches the volume: the record is dropped, and the scheduler selects another node.", node: "b", then: kept, want: state{Claim: true, Volumes: 1, Drops: 1}},
		"OwnDeleted":    {reason: "Nothing keeps the claim without end.", node: "b", then: deleted, want: state{Volumes: 1, Drops: 1}},
		"NodeExists":    {reason: "The instance may come back: its record stays.", node: "a1", stays: true, then: kept, want: state{Claim: true, Recorded: true, Selected: true, Volumes: 1}},
		"NodeReturns": {
			reason: "The node has come back before its record was dropped, and finishes what it began.", node: "b",
			then: func(f *fleet) {
				f.pass(12)
				f.apply(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}})
				f.nodes["b"].dead = false
				f.start("b")
			}, want: state{Claim: true, Selected: true, Volumes: 1, PVs: 1, Drops: 1},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			onZones(t, func(f *fleet) {
				driver := f.nodes[tc.node].driver
				driver.Inject(csitest.Fault{Method: "CreateVolume", After: true, Code: codes.Unavailable, Message: "the answer is lost"})
				f.claimNamed("data", "uid-1")
				f.choose(tc.node)
				f.pass(1)
				if tc.stays {
					f.crash(tc.node)
					f.nodes[tc.node].dead = true
				} else {
					f.kill(tc.node)
				}
				driver.Heal()
				before := len(recordDrops(f))
				tc.then(f)
				f.pass(120)
				got := state{Volumes: len(driver.Volumes()), PVs: len(f.cluster.Objects("persistentvolumes")), Drops: len(recordDrops(f)) - before}
				if claim := f.only(); claim != nil {
					got.Claim, got.Recorded, got.Selected = true, intents.Recorded(claim), view.SelectedNode(claim) != ""
				}
				if got != tc.want {
					t.Errorf("%s\ngot  %+v\nwant %+v", tc.reason, got, tc.want)
				}
			})
		})
	}
}

// TestClaimBoundElsewhere has an instance come back for a volume that it had in progress, while its claim got one on another node
// and names the first node again: the second volume is deleted.
func TestClaimBoundElsewhere(t *testing.T) {
	onZones(t, func(f *fleet) {
		b := f.nodes["b"].driver
		b.Inject(csitest.Fault{Method: "CreateVolume", After: true, Code: codes.Unavailable, Message: "the answer is lost"})
		f.claimNamed("data", "uid-1")
		f.choose("b")
		f.pass(1)
		f.crash("b")
		f.choose("a1")
		f.pass(1)
		if claim := f.only(); claim.Spec.VolumeName == "" || !intents.Recorded(claim) || len(b.Volumes()) != 1 {
			t.Fatalf("claim %v, %d volumes on node b, want a claim that is bound on node a1, and has a record of node b with a volume", claim, len(b.Volumes()))
		}
		f.choose("b")
		b.Heal()
		f.start("b")
		f.pass(5)
		if claim := f.only(); intents.Recorded(claim) || len(b.Volumes()) != 0 || len(f.nodes["a1"].driver.Volumes()) != 1 {
			t.Errorf("claim %v, %d volumes on node b and %d on node a1, want the one that the claim is bound to, and no record", claim, len(b.Volumes()), len(f.nodes["a1"].driver.Volumes()))
		}
	})
}

// recordDrops returns the writes by which a claim has lost its last record.
func recordDrops(f *fleet) []kubetest.Write {
	return slices.DeleteFunc(slices.Clone(f.cluster.Writes()), func(w kubetest.Write) bool {
		before, _ := w.Before.(*corev1.PersistentVolumeClaim)
		after, ok := w.Object.(*corev1.PersistentVolumeClaim)
		return !ok || w.Err != nil || before == nil || !intents.Recorded(before) || intents.Recorded(after)
	})
}
