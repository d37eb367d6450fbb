package claim

import (
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest/fixtures"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

// onNode1 runs a test on a rig whose instance provisions for the node n1.
func onNode1(t *testing.T, test func(*testing.T, *rig)) {
	t.Helper()
	settings := rigSettings()
	settings.Node = newNode()
	onRigWith(t, csitest.Options{NodeID: "n1", Topology: settings.Node.Segments}, settings, test, fixtures.Class())
}

// notes returns which notes there are about the test claim.
func (r *rig) notes() []bool {
	record := r.claimRecords.Get("uid-1")
	return []bool{record.unverified, !record.unplaced.since.IsZero()}
}

// TestNothingIsKeptOfClaimsElsewhere makes all kinds of notes about a claim, and hands it to another node.
func TestNothingIsKeptOfClaimsElsewhere(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(r *rig, claim *corev1.PersistentVolumeClaim)
		want   []bool
	}{
		"Own":       {reason: "A claim of this node keeps its notes.", change: func(*rig, *corev1.PersistentVolumeClaim) {}, want: []bool{true, true}},
		"Elsewhere": {reason: "One that another node has taken keeps nothing.", change: func(_ *rig, c *corev1.PersistentVolumeClaim) { c.Annotations[view.AnnSelectedNode] = "n2" }, want: []bool{false, false}},
		"Late": {reason: "So it is with late binding.", change: func(r *rig, c *corev1.PersistentVolumeClaim) {
			class := fixtures.Class()
			late(class)
			r.apply(class)
			c.Annotations[view.AnnSelectedNode] = "n2"
		}, want: []bool{false, false}},
		"Bound": {reason: "A claim that has its volume keeps nothing.", change: func(_ *rig, c *corev1.PersistentVolumeClaim) {
			c.Annotations[view.AnnSelectedNode], c.Spec.VolumeName = "n2", "pvc-uid-1"
		}, want: []bool{false, false}},
		"Gone": {reason: "A claim that is gone keeps nothing.", change: nil, want: []bool{false, false}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			onNode1(t, func(t *testing.T, r *rig) {
				claim := fixtures.Claim()
				claim.ResourceVersion, claim.Annotations[view.AnnSelectedNode] = "", "n1"
				r.apply(claim)
				r.WatchesCatchUp()
				r.claimRecords.Change(claim.UID, func(record *claimRecord) {
					*record = claimRecord{unverified: true, unplaced: unplaced{key: keyOf(claim), since: time.Now()}}
				})
				if tc.change == nil {
					if err := r.Cluster.Remove("persistentvolumeclaims", "team", "data"); err != nil {
						t.Fatal(err)
					}
				} else {
					changed := r.StoredClaim()
					tc.change(r, changed)
					r.WatchesCatchUp()
					r.apply(changed)
				}
				r.WatchesCatchUp()
				if diff := cmp.Diff(tc.want, r.notes()); diff != "" {
					t.Errorf("%s\nnotes (-want +got):\n%s", tc.reason, diff)
				}
			})
		})
	}
}

// apply stores an object.
func (r *rig) apply(obj kube.Object) {
	r.T.Helper()
	if err := r.Cluster.Apply(obj); err != nil {
		r.T.Fatal(err)
	}
}

// step takes one step for the test claim.
func (r *rig) step() (reconcile.Result, error) {
	return r.reconcileClaim(fixtures.Quiet(r.T), keyOf(fixtures.Claim()))
}

// TestUnverifiedAtStart marks the claims that this node may have provisioned already, and no others.
func TestUnverifiedAtStart(t *testing.T) {
	for node, want := range map[string]bool{"n1": true, "": true, "n2": false} {
		t.Run("Selected"+node, func(t *testing.T) {
			onNode1(t, func(t *testing.T, r *rig) {
				claim := fixtures.Claim()
				claim.ResourceVersion, claim.Annotations[view.AnnSelectedNode] = "", node
				r.apply(claim)
				r.WatchesCatchUp()
				r.begin()
				if got := r.claimRecords.Get(claim.UID).unverified; got != want {
					t.Errorf("the claim for node %q is to be read live: %v, want %v", node, got, want)
				}
				gone := fixtures.PV()
				r.claimRecords.Drop(claim.UID)
				r.volumeGone(gone)
				if got := r.claimRecords.Get(claim.UID).unverified; got != want {
					t.Errorf("the claim for node %q is to be read live when its volume is gone: %v, want %v", node, got, want)
				}
			})
		})
	}
}

// TestTake lets a claim change between the look at the cache and the look at the API.
func TestTake(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(claim *corev1.PersistentVolumeClaim)
		fault  error
		taken  bool
		fails  bool
	}{
		"Free": {reason: "A claim that is free is taken.", change: func(*corev1.PersistentVolumeClaim) {}, taken: true},
		"Bare": {reason: "The deprecated annotation alone makes it ours as well.", change: func(c *corev1.PersistentVolumeClaim) {
			c.Annotations = map[string]string{view.AnnBetaProvisioner: driver}
		}, taken: true},
		"Kept":     {reason: "What others have written meanwhile is kept.", change: func(c *corev1.PersistentVolumeClaim) { c.Annotations["example.com/a"] = "b" }, taken: true},
		"Taken":    {reason: "Another node was faster.", change: func(c *corev1.PersistentVolumeClaim) { c.Annotations[view.AnnSelectedNode] = "n2" }},
		"Bound":    {reason: "It has a volume.", change: func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "pv" }},
		"Foreign":  {reason: "It is for another driver.", change: func(c *corev1.PersistentVolumeClaim) { c.Annotations[view.AnnProvisioner] = "other" }},
		"Another":  {reason: "It is another claim of the same name.", change: func(c *corev1.PersistentVolumeClaim) { c.UID = "uid-2" }},
		"Gone":     {reason: "It is gone.", change: nil},
		"Conflict": {reason: "A conflict is tried again.", change: func(*corev1.PersistentVolumeClaim) {}, fault: apierrors.NewConflict(corev1.Resource("persistentvolumeclaims"), "data", nil), fails: true},
		"Away":     {reason: "So is an error.", change: func(*corev1.PersistentVolumeClaim) {}, fault: apierrors.NewServiceUnavailable("away"), fails: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			onNode1(t, func(t *testing.T, r *rig) {
				claim := fixtures.Claim()
				claim.ResourceVersion, claim.Annotations["example.com/old"] = "", "kept"
				r.apply(claim)
				r.WatchesCatchUp()
				if _, err := r.step(); err != nil {
					t.Fatal(err)
				}
				r.Deaf("persistentvolumeclaims")
				changed := r.StoredClaim()
				if err := r.Cluster.Remove("persistentvolumeclaims", "team", "data"); err != nil {
					t.Fatal(err)
				}
				if tc.change != nil {
					tc.change(changed)
					r.apply(changed)
				}
				if tc.fault != nil {
					r.Cluster.Fail("update", "persistentvolumeclaims", tc.fault, 1)
				}
				time.Sleep(20 * time.Second)
				r.Cluster.ResetWrites()
				if _, err := r.step(); (err != nil) != tc.fails || apierrors.IsConflict(err) != apierrors.IsConflict(tc.fault) {
					t.Errorf("%s\nerror %v, want one: %v", tc.reason, err, tc.fails)
				}
				live := r.StoredClaim()
				if taken := live != nil && view.SelectedNode(live) == "n1"; taken != tc.taken {
					t.Errorf("%s\ntaken: %v, want %v", tc.reason, taken, tc.taken)
				}
				if cached, ok := r.view.Claims.Get("team", "data"); tc.taken && (!ok || view.SelectedNode(cached) != "n1" || len(live.Annotations) < 2) {
					t.Errorf("%s\nthe cache has %v, the API %v", tc.reason, cached, live.Annotations)
				}
			})
		})
	}
}

// TestCapacityIsAskedOnce looks at the request, and at a driver that cannot be asked.
func TestCapacityIsAskedOnce(t *testing.T) {
	create := csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME
	cases := map[string]struct {
		reason string
		change func(r *rig, claim *corev1.PersistentVolumeClaim)
		caps   []csi.ControllerServiceCapability_RPC_Type
		calls  []string
		taken  bool
	}{
		"Asked":  {reason: "The driver is asked.", calls: []string{"GetCapacity"}, taken: true},
		"Unable": {reason: "GetCapacity is not called without the capability.", caps: []csi.ControllerServiceCapability_RPC_Type{create}, taken: true},
		"Fails": {reason: "A driver whose GetCapacity fails gets no claim.", change: func(r *rig, _ *corev1.PersistentVolumeClaim) {
			r.Driver.Inject(csitest.Fault{Method: "GetCapacity", Code: codes.Internal})
		}, calls: []string{"GetCapacity"}},
		"NoRequest": {reason: "A claim that cannot be asked for is taken, to be refused.", change: func(_ *rig, c *corev1.PersistentVolumeClaim) { c.Spec.AccessModes = nil }, taken: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			settings := rigSettings()
			settings.Node = newNode()
			onRigWith(t, csitest.Options{NodeID: "n1", Topology: settings.Node.Segments, Controller: tc.caps}, settings, func(t *testing.T, r *rig) {
				claim := fixtures.Claim()
				claim.ResourceVersion = ""
				if tc.change != nil {
					tc.change(r, claim)
				}
				r.apply(claim)
				r.WatchesCatchUp()
				result, err := r.step()
				if err != nil || result.After <= 0 || result.After > 20*time.Second {
					t.Fatalf("%s\nfirst step %+v, %v, want a pause", tc.reason, result, err)
				}
				time.Sleep(result.After)
				result, err = r.step()
				if err != nil || (result.After > 0) == tc.taken {
					t.Errorf("%s\nsecond step %+v, %v", tc.reason, result, err)
				}
				if diff := cmp.Diff(tc.calls, r.Calls()); diff != "" {
					t.Errorf("%s\ncalls (-want +got):\n%s", tc.reason, diff)
				}
				if taken := view.SelectedNode(r.StoredClaim()) == "n1"; taken != tc.taken {
					t.Errorf("%s\ntaken: %v, want %v", tc.reason, taken, tc.taken)
				}
			}, fixtures.Class())
		})
	}
}

// TestClassBringsClaims looks at the claims that other nodes have taken as soon as there is a class which says that they are
// contested, and not at those that the scheduler has given away.
func TestClassBringsClaims(t *testing.T) {
	for name, want := range map[string]int{"Immediate": 1, "Late": 0} {
		t.Run(name, func(t *testing.T) {
			settings := rigSettings()
			settings.Node = newNode()
			onRigWith(t, csitest.Options{NodeID: "n1", Topology: settings.Node.Segments}, settings, func(t *testing.T, r *rig) {
				claim := fixtures.Claim()
				claim.ResourceVersion, claim.Annotations[view.AnnSelectedNode] = "", "n2"
				r.apply(claim)
				r.WatchesCatchUp()
				if got := r.waiting()[0]; got != 0 {
					t.Errorf("%d claims to look at before there is a class", got)
				}
				class := fixtures.Class()
				if name == "Late" {
					late(class)
				}
				r.apply(class)
				r.WatchesCatchUp()
				if got := r.waiting()[0]; got != want {
					t.Errorf("%d claims to look at, want %d", got, want)
				}
			})
		})
	}
}

// TestSeek looks after the node that has taken a claim, once per pause.
func TestSeek(t *testing.T) {
	cases := map[string]struct {
		reason string
		fault  error
		exists bool
		// reads is how often the node is read in five steps, of which the first only waits.
		reads int
		node  string
	}{
		"Exists":  {reason: "A node that exists keeps its claim.", exists: true, reads: 4, node: "n2"},
		"Gone":    {reason: "One that does not exist loses it; once is enough to know.", reads: 1, node: "n1"},
		"Unknown": {reason: "What cannot be found out changes nothing.", fault: apierrors.NewForbidden(corev1.Resource("nodes"), "n2", nil), reads: 4, node: "n2"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			onNode1(t, func(t *testing.T, r *rig) {
				if tc.exists {
					r.apply(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}})
				}
				reads := 0
				r.Cluster.Inject(kubetest.Fault{Verb: "get", Resource: "nodes", Err: tc.fault, Do: func() { reads++ }})
				claim := fixtures.Claim()
				claim.ResourceVersion, claim.Annotations[view.AnnSelectedNode] = "", "n2"
				r.apply(claim)
				r.WatchesCatchUp()
				for range 5 {
					result, err := r.step()
					if err != nil {
						t.Fatal(err)
					}
					time.Sleep(result.After)
				}
				if got := view.SelectedNode(r.StoredClaim()); got != tc.node || reads != tc.reads {
					t.Errorf("%s\nthe claim is for node %q after %d looks, want %q after %d", tc.reason, got, reads, tc.node, tc.reads)
				}
			})
		})
	}
}
