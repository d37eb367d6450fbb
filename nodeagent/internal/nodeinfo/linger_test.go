package nodeinfo

import (
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func lingering(cfg *Config) { cfg.Linger = 5 * time.Minute }

func (w *world) uninstall(name string) {
	w.t.Helper()
	if err := w.w.Uninstall(w.t.Context(), name); err != nil {
		w.t.Fatal(err)
	}
}

// pass lets time pass, and looks at the drivers of the CSINode.
func (w *world) pass(d time.Duration, want ...string) {
	w.t.Helper()
	time.Sleep(d)
	synctest.Wait()
	w.expectIDs(want...)
}

// Kubernetes #126921: a driver that is restarted takes its limit out of the CSINode for the moment, and the scheduler places more pods than
// the node has volumes for.
func TestLinger(t *testing.T) {
	cases := map[string]struct {
		reason string
		run    func(w *world)
	}{
		"Away": {reason: "a driver that stays away is removed after the grace period", run: func(w *world) {
			w.uninstall("d.example")
			w.pass(299*time.Second, "d.example=id-1")
			w.expectWrites()
			w.pass(time.Second)
			w.expectWrites("update csinodes", "patch nodes/status")
			w.pass(time.Hour)
			w.expectWrites()
		}},
		"Back": {reason: "a driver that comes back writes nothing, and is not removed later", run: func(w *world) {
			w.uninstall("d.example")
			w.pass(4*time.Minute, "d.example=id-1")
			w.install(driverD())
			w.pass(time.Hour, "d.example=id-1")
			w.expectWrites()
		}},
		"BackTooLate": {reason: "a driver that comes back after the grace period is written again", run: func(w *world) {
			w.uninstall("d.example")
			w.pass(6 * time.Minute)
			w.c.ResetWrites()
			w.install(driverD())
			w.pass(time.Hour, "d.example=id-1")
			w.expectWrites("patch nodes/status", "update csinodes")
		}},
		"BackChanged": {reason: "a driver that was replaced by one with another node ID", run: func(w *world) {
			w.uninstall("d.example")
			w.pass(time.Minute, "d.example=id-1")
			d := driverD()
			d.NodeID = "id-2"
			w.install(d)
			w.pass(time.Hour, "d.example=id-2")
		}},
		"Failing": {reason: "registrations that fail do not extend the grace period", run: func(w *world) {
			for range 4 {
				w.uninstall("d.example")
				w.pass(time.Minute, "d.example=id-1")
			}
			w.pass(time.Minute)
		}},
		"Twice": {reason: "each absence has its own grace period", run: func(w *world) {
			w.uninstall("d.example")
			w.pass(4*time.Minute, "d.example=id-1")
			w.install(driverD())
			w.uninstall("d.example")
			w.pass(299*time.Second, "d.example=id-1")
			w.pass(time.Second)
		}},
		"CSINodeDeleted": {reason: "what lingers is restored like what is installed", run: func(w *world) {
			w.uninstall("d.example")
			if err := w.c.Remove("csinodes", "", nodeName); err != nil {
				w.t.Fatal(err)
			}
			w.pass(61*time.Second, "d.example=id-1")
			w.pass(4 * time.Minute)
		}},
		"ServerAway": {reason: "the removal is tried until it succeeds", run: func(w *world) {
			w.uninstall("d.example")
			w.c.Fail("update", "csinodes", errors.New("connection refused"), 0)
			w.pass(10*time.Minute, "d.example=id-1")
			w.c.Heal()
			w.pass(2 * time.Minute)
		}},
		"Others": {reason: "drivers that are installed meanwhile stay, and do not remove it early", run: func(w *world) {
			w.uninstall("d.example")
			w.install(Driver{Name: "e.example", NodeID: "id-5"})
			w.pass(time.Minute, "d.example=id-1", "e.example=id-5")
			w.pass(5*time.Minute, "e.example=id-5")
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Log(tc.reason)
			story(t, lingering, func(t *testing.T, w *world) {
				w.install(driverD())
				stop := w.run()
				w.c.ResetWrites()
				tc.run(w)
				stop()
			})
		})
	}
}

// TestNoLinger: where the scheduler keeps pods off nodes without the driver, its entry goes at once, and pods do not come while it is away.
func TestNoLinger(t *testing.T) {
	waits := func(cfg *Config) {
		lingering(cfg)
		cfg.Waits = func(driver string) bool { return driver == "d.example" }
	}
	story(t, waits, func(t *testing.T, w *world) {
		w.install(driverD())
		w.install(Driver{Name: "e.example", NodeID: "id-5"})
		stop := w.run()
		w.uninstall("d.example")
		w.uninstall("e.example")
		w.pass(0, "e.example=id-5")
		w.pass(6 * time.Minute)
		stop()
	})
}

// TestLingerAfterARestart: entries that an earlier process has written go unless their drivers come back; those of other grace periods do not count.
func TestLingerAfterARestart(t *testing.T) {
	cases := map[string]struct {
		reason string
		linger time.Duration
		want   []string
	}{
		"Linger": {reason: "the driver that has come back stays", linger: 5 * time.Minute, want: []string{"d.example=id-1"}},
		"None":   {reason: "without a grace period nothing has lingered", want: []string{"d.example=id-1", "gone.example=id-9"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			story(t, func(cfg *Config) { cfg.Linger = tc.linger }, func(t *testing.T, w *world) {
				left := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{
					Name: nodeName, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: nodeName, UID: w.node().UID}},
				}}
				for _, d := range []Driver{driverD(), {Name: "gone.example", NodeID: "id-9"}} {
					left.Spec.Drivers = append(left.Spec.Drivers, d.entry())
				}
				if err := w.c.Apply(left); err != nil {
					t.Fatal(err)
				}
				if err := w.c.Merge("nodes", "", nodeName, []byte(`{"metadata":{"annotations":{"`+NodeIDAnnotation+`":"{\"gone.example\":\"id-9\"}"}}}`)); err != nil {
					t.Fatal(err)
				}
				if err := w.w.EnsureCSINode(t.Context()); err != nil {
					t.Fatal(err)
				}
				defer w.run()()
				w.install(driverD())
				w.pass(299*time.Second, "d.example=id-1", "gone.example=id-9")
				w.pass(time.Second, tc.want...)
				if _, ok := nodeIDs(w.node())["gone.example"]; ok != (len(tc.want) > 1) {
					t.Errorf("%s: node ID is there: %v", tc.reason, ok)
				}
				w.c.ResetWrites()
				w.pass(time.Hour, tc.want...)
				w.expectWrites()
			})
		})
	}
}

// nodeIDs returns the node IDs in the annotation of a Node.
func nodeIDs(node *corev1.Node) map[string]string {
	ids := map[string]string{}
	_ = json.Unmarshal([]byte(node.Annotations[NodeIDAnnotation]), &ids) // no annotation, no IDs
	return ids
}
