package claim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/reconciletest"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest/fixtures"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

// onFlow runs a controller with all its queues; the test plays the users and the controller manager.
func onFlow(t *testing.T, play func(t *testing.T, g *chaos)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := &chaos{t: t, cluster: kubeapitest.NewCluster(fixtures.Class()), driver: csitest.New(csitest.Options{})}
		ctx, cancel := context.WithCancel(fixtures.Quiet(t))
		ended := make(chan error, 1)
		go func() {
			ended <- runController(ctx, &reconciletest.Env{Kube: g.cluster.Client(), Conn: g.driver.Conn(), Driver: g.driver, Cluster: g.cluster})
		}()
		synctest.Wait()
		play(t, g)
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the controller ended with %v", err)
		}
	})
}

// claimNamed stores a claim of that name and UID.
func (g *chaos) claimNamed(name, uid string) {
	claim := fixtures.Claim()
	claim.Name, claim.UID, claim.ResourceVersion = name, types.UID(uid), ""
	g.apply(claim)
}

// remove deletes an object, as users do.
func (g *chaos) remove(resource, namespace, name string) {
	g.t.Helper()
	if err := g.cluster.Remove(resource, namespace, name); err != nil {
		g.t.Fatal(err)
	}
}

// tally counts the writes since the last tally by verb and resource. Those of the journal, which many volumes share, are counted by shared.
func (g *chaos) tally() map[string]int {
	count := map[string]int{}
	for _, w := range g.cluster.Writes() {
		if w.Resource == "leases" {
			g.shared++
			continue
		}
		count[w.Verb+" "+w.Resource]++
	}
	g.cluster.ResetWrites()
	return count
}

// volumes returns the names of the driver's volumes.
func (g *chaos) volumes() []string {
	var names []string
	for _, v := range g.driver.Volumes() {
		names = append(names, v.Name)
	}
	slices.Sort(names)
	return names
}

// TestBudget counts what fifty claims cost, from the claim to the end of its volume: what is above this is
// wasted, and multiplied by every volume of a cluster.
func TestBudget(t *testing.T) {
	const n = 50
	onFlow(t, func(t *testing.T, g *chaos) {
		g.cluster.SetLatency("leases", 5*time.Millisecond) // as long as it takes, others wait for the next write, and share it
		for i := range n {
			g.claimNamed(fmt.Sprintf("c%02d", i), fmt.Sprintf("u%02d", i))
		}
		time.Sleep(time.Minute)
		g.manage()
		time.Sleep(time.Minute)
		want := map[string]int{"create persistentvolumes": n, "create events": 2 * n}
		if diff := cmp.Diff(want, g.tally()); diff != "" {
			t.Errorf("writes to provision %d claims (-want +got):\n%s", n, diff)
		}
		if got := len(g.calls("CreateVolume")); got != n {
			t.Errorf("%d calls of CreateVolume for %d claims", got, n)
		}
		for i := range n {
			g.remove("persistentvolumeclaims", "team", fmt.Sprintf("c%02d", i))
		}
		g.manage()
		time.Sleep(time.Minute)
		want = map[string]int{"patch persistentvolumes": n, "delete persistentvolumes": n}
		if diff := cmp.Diff(want, g.tally()); diff != "" {
			t.Errorf("writes to delete %d volumes (-want +got):\n%s", n, diff)
		}
		if got := len(g.calls("DeleteVolume")); got != n {
			t.Errorf("%d calls of DeleteVolume for %d volumes", got, n)
		}
		if g.shared > 12 { // ten workers: five times two, the takeover, and the last end
			t.Errorf("%d writes of the journal for %d volumes that are made within seconds, want at most 12", g.shared, n)
		}
		g.shared = 0
		time.Sleep(24 * time.Hour)
		if diff := cmp.Diff(map[string]int{}, g.tally()); diff != "" || g.shared > 0 {
			t.Errorf("writes of a controller that has nothing to do, and %d of the journal (-want +got):\n%s", g.shared, diff)
		}
	})
}

// TestCloneBudget counts what fifty clones of one claim cost: its finalizer is put on once and taken off once.
func TestCloneBudget(t *testing.T) {
	const n = 50
	onFlow(t, func(t *testing.T, g *chaos) {
		g.claimNamed("source", "source")
		time.Sleep(time.Minute)
		g.manage()
		g.tally()
		for i := range n {
			claim := fixtures.Claim()
			claim.Name, claim.UID, claim.ResourceVersion = fmt.Sprintf("c%02d", i), types.UID(fmt.Sprintf("u%02d", i)), ""
			claim.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: view.KindClaim, Name: "source"}
			g.apply(claim)
		}
		time.Sleep(time.Minute)
		g.manage()
		time.Sleep(time.Minute)
		want := map[string]int{"create persistentvolumes": n, "create events": 2 * n, "update persistentvolumeclaims": 2}
		if diff := cmp.Diff(want, g.tally()); diff != "" {
			t.Errorf("writes to make %d clones (-want +got):\n%s", n, diff)
		}
	})
}

// calls returns the names of the volumes that a method was called with.
func (g *chaos) calls(method string) []string {
	var found []string
	for _, call := range g.driver.Calls() {
		if call.Method == method {
			found = append(found, fmt.Sprint(call.Request))
		}
	}
	return found
}

// TestSameNameInSequence deletes a claim at each stage of its volume and makes one of the same name at once:
// each life has its own volume, and none is left of the first.
func TestSameNameInSequence(t *testing.T) {
	hang := csitest.Fault{Method: "CreateVolume", After: true, Hang: true, Times: 1}
	cases := map[string]struct {
		reason string
		// before is what happens before the first claim, between what happens after it.
		before, between func(g *chaos)
	}{
		"AtOnce": {
			reason: "The first claim is gone before anything was done.",
		},
		"WhileCreating": {
			reason: "The first CreateVolume still runs.",
			before: func(g *chaos) { g.driver.Inject(hang) }, between: func(*chaos) { time.Sleep(time.Second) },
		},
		"WhileUncertain": {
			reason: "The first CreateVolume has ended in doubt, and is repeated.",
			before: func(g *chaos) {
				g.driver.Inject(csitest.Fault{Method: "CreateVolume", After: true, Code: codes.Unavailable, Times: 1})
				g.driver.Inject(csitest.Fault{Method: "CreateVolume", Code: codes.Unavailable, Times: 2})
			},
			between: func(*chaos) { time.Sleep(1500 * time.Millisecond) },
		},
		"WhileSaving": {
			reason: "The first volume exists and is not saved.",
			before: func(g *chaos) {
				g.cluster.Fail("create", "persistentvolumes", apierrors.NewServiceUnavailable("away"), 3)
			},
			between: func(*chaos) { time.Sleep(time.Second) },
		},
		"Saved": {
			reason:  "The first volume is saved and not bound.",
			between: func(*chaos) { time.Sleep(time.Second) },
		},
		"Bound": {
			reason:  "The first volume is bound.",
			between: func(g *chaos) { time.Sleep(time.Second); g.manage(); time.Sleep(time.Second) },
		},
		"UnseenByTheWatch": {
			reason:  "The watch is away, and brings both claims as one change of one name.",
			between: func(g *chaos) { time.Sleep(time.Second); g.cluster.BreakWatches(); g.cluster.Compact() },
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			onFlow(t, func(t *testing.T, g *chaos) {
				for _, happens := range []func(*chaos){tc.before, func(g *chaos) { g.claimNamed("data", "first") }, tc.between} {
					if happens != nil {
						happens(g)
					}
				}
				g.remove("persistentvolumeclaims", "team", "data")
				g.claimNamed("data", "second")
				for range 20 {
					time.Sleep(time.Minute)
					g.manage()
				}
				if diff := cmp.Diff([]string{"pvc-second"}, g.volumes()); diff != "" {
					t.Errorf("%s\nvolumes (-want +got):\n%s", tc.reason, diff)
				}
				g.check()
			})
		})
	}
}

// TestPolicyChanges flips the reclaim policy of a volume before its claim is deleted: what it says then counts.
func TestPolicyChanges(t *testing.T) {
	const keep, drop = `{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`, `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`
	cases := map[string]struct {
		reason  string
		patches []string
		// first deletes the PersistentVolume before the claim.
		first bool
		kept  bool
		// object says that the PersistentVolume is still there in the end.
		object bool
	}{
		"Delete":            {reason: "The policy of the class."},
		"Retain":            {reason: "The last word keeps the volume and its object.", patches: []string{keep}, kept: true, object: true},
		"RetainDelete":      {reason: "The last word deletes it.", patches: []string{keep, drop}},
		"Flips":             {reason: "It is the last word that counts.", patches: []string{keep, drop, keep, drop, keep}, kept: true, object: true},
		"DeleteFirst":       {reason: "A volume that is deleted before its claim obeys its policy (KEP-2644).", first: true},
		"RetainFirst":       {reason: "So does one that is kept: only the object goes.", patches: []string{keep}, first: true, kept: true},
		"RetainDeleteFirst": {reason: "The finalizer is back in time.", patches: []string{keep, drop}, first: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			onFlow(t, func(t *testing.T, g *chaos) {
				g.claimNamed("data", "u1")
				time.Sleep(time.Second)
				g.manage()
				for _, patch := range tc.patches {
					if err := g.cluster.Merge("persistentvolumes", "", "pvc-u1", []byte(patch)); err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Second)
				}
				if tc.first {
					g.remove("persistentvolumes", "", "pvc-u1")
				}
				time.Sleep(time.Second)
				if got := len(g.volumes()); got != 1 {
					t.Fatalf("%s\n%d volumes while the claim is there, want 1", tc.reason, got)
				}
				g.remove("persistentvolumeclaims", "team", "data")
				g.manage()
				time.Sleep(time.Minute)
				if got := len(g.volumes()) == 1; got != tc.kept {
					t.Errorf("%s\nvolume is kept: %v, want %v", tc.reason, got, tc.kept)
				}
				if got := len(g.cluster.Objects("persistentvolumes")) == 1; got != tc.object {
					t.Errorf("%s\nPersistentVolume is kept: %v, want %v", tc.reason, got, tc.object)
				}
			})
		})
	}
}

// TestClassDeletedMeanwhile deletes the StorageClass at each stage: what has begun goes on with the class as
// it was, and what has not waits for a class.
func TestClassDeletedMeanwhile(t *testing.T) {
	onFlow(t, func(t *testing.T, g *chaos) {
		g.driver.Inject(csitest.Fault{Method: "CreateVolume", Code: codes.Unavailable, Times: 3})
		g.claimNamed("begun", "u1")
		time.Sleep(time.Second)
		g.remove("storageclasses", "", "fast")
		time.Sleep(time.Second) // classes and claims have watches of their own
		g.claimNamed("waits", "u2")
		time.Sleep(time.Minute)
		if diff := cmp.Diff([]string{"pvc-u1"}, g.volumes()); diff != "" {
			t.Errorf("volumes without the class (-want +got):\n%s", diff)
		}
		g.manage()
		g.remove("persistentvolumeclaims", "team", "begun")
		g.manage()
		time.Sleep(time.Minute)
		if diff := cmp.Diff([]string(nil), g.volumes()); diff != "" {
			t.Errorf("volumes after the claim (-want +got):\n%s", diff)
		}
		g.apply(fixtures.Class())
		time.Sleep(time.Minute)
		if diff := cmp.Diff([]string{"pvc-u2"}, g.volumes()); diff != "" {
			t.Errorf("volumes with the class back (-want +got):\n%s", diff)
		}
	})
}

// TestAPIServerRestarts takes the API away while claims are made and deleted: nothing is lost, and nothing is
// made twice.
func TestAPIServerRestarts(t *testing.T) {
	onFlow(t, func(t *testing.T, g *chaos) {
		for i := range 5 {
			g.claimNamed(fmt.Sprintf("old%d", i), fmt.Sprintf("old%d", i))
		}
		time.Sleep(time.Minute)
		g.manage()

		g.cluster.Fail("", "", apierrors.NewServiceUnavailable("restarting"), 0)
		g.cluster.BreakWatches()
		for i := range 5 {
			g.remove("persistentvolumeclaims", "team", fmt.Sprintf("old%d", i))
			g.claimNamed(fmt.Sprintf("new%d", i), fmt.Sprintf("new%d", i))
		}
		g.manage()
		time.Sleep(10 * time.Minute)
		if got := len(g.volumes()); got != 5 {
			t.Errorf("%d volumes while the API is away, want the 5 from before", got)
		}
		g.cluster.Compact()
		g.cluster.Heal()
		for range 10 {
			time.Sleep(time.Minute)
			g.manage()
		}
		g.check()
		for _, method := range []string{"CreateVolume", "DeleteVolume"} {
			counted := map[string]int{}
			for _, call := range g.calls(method) {
				counted[call]++
			}
			if most := slices.Max(slices.Collect(maps.Values(counted))); most > 1 {
				t.Errorf("%s was called %d times for one volume", method, most)
			}
		}
	})
}

// TestRefusalsGetRarer has the API refuse the PersistentVolume of a claim over and over: the pauses between the attempts
// grow, as after every other failure. They used to stay at the shortest.
func TestRefusalsGetRarer(t *testing.T) {
	onFlow(t, func(t *testing.T, g *chaos) {
		invalid := apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("PersistentVolume").GroupKind(), "pvc-u1", field.ErrorList{field.Required(field.NewPath("spec", "capacity"), "")})
		g.cluster.Fail("create", "persistentvolumes", invalid, 0)
		g.claimNamed("data", "u1")
		time.Sleep(time.Hour)
		made, deleted := len(g.calls("CreateVolume")), len(g.calls("DeleteVolume"))
		if made < 10 || made > 30 || made != deleted {
			t.Errorf("%d volumes were made and %d deleted within an hour, want about 20 of both", made, deleted)
		}
		g.cluster.Heal()
		time.Sleep(10 * time.Minute)
		g.check()
	})
}

// TestChangedWhileUncertain changes a claim whose outcome is open, which then turns out infeasible: it was the request of
// before the change that was, so the new one is tried at once.
func TestChangedWhileUncertain(t *testing.T) {
	onFlow(t, func(t *testing.T, g *chaos) {
		g.driver.Inject(csitest.Fault{Method: "CreateVolume", Code: codes.Unavailable, Times: 2})
		g.driver.Inject(csitest.Fault{Method: "CreateVolume", Code: codes.InvalidArgument, Times: 1})
		g.claimNamed("data", "u1")
		time.Sleep(100 * time.Millisecond)
		changed, ok := g.cluster.Objects("persistentvolumeclaims")[0].(*corev1.PersistentVolumeClaim)
		if !ok {
			t.Fatal("no claim")
		}
		changed.Annotations["example.com/tier"] = "other"
		g.apply(changed)
		time.Sleep(10 * time.Second)
		if diff := cmp.Diff([]string{"pvc-u1"}, g.volumes()); diff != "" {
			t.Errorf("volumes soon after the change (-want +got):\n%s", diff)
		}
	})
}

// TestNodeTakenWhileCreating takes the selected node from a claim whose CreateVolume is in doubt: the same
// request is repeated until its outcome is known, and the volume is the claim's.
func TestNodeTakenWhileCreating(t *testing.T) {
	onFlow(t, func(t *testing.T, g *chaos) {
		class := fixtures.Class()
		late(class)
		g.apply(class)
		g.driver.Inject(csitest.Fault{Method: "CreateVolume", After: true, Code: codes.DeadlineExceeded, Times: 2})
		claim := onNode("node-1")
		claim.ResourceVersion = ""
		g.apply(claim)
		time.Sleep(500 * time.Millisecond)
		taken, ok := g.cluster.Objects("persistentvolumeclaims")[0].(*corev1.PersistentVolumeClaim)
		if !ok {
			t.Fatal("no claim")
		}
		delete(taken.Annotations, view.AnnSelectedNode)
		g.apply(taken)
		time.Sleep(time.Minute)
		requests := g.calls("CreateVolume")
		if len(requests) != 3 || len(slices.Compact(requests)) != 1 {
			t.Errorf("requests, of which 3 must be the same:\n%q", requests)
		}
		g.manage()
		g.check()
	})
}
