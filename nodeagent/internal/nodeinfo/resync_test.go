package nodeinfo

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// run runs the writer until stop is called.
func (w *world) run() (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- w.w.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("Run: %v", err)
		}
	}
}

func TestOwnerThatIsGone(t *testing.T) {
	story(t, nil, func(t *testing.T, w *world) {
		w.install(driverD())
		old := w.csiNode().UID
		if err := w.c.Remove("nodes", "", nodeName); err != nil {
			t.Fatal(err)
		}
		if err := w.c.Apply(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "another"}}); err != nil {
			t.Fatal(err)
		}
		w.c.ResetWrites()
		if err := w.w.EnsureCSINode(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.expectWrites("delete csinodes", "create csinodes")
		got := w.csiNode()
		if got.UID == old || got.OwnerReferences[0].UID != "another" {
			t.Errorf("CSINode %s is owned by %v", got.UID, got.OwnerReferences)
		}
		w.expectIDs("d.example=id-1")
	})
}

// Kubernetes #120063: the kubelet does not make a deleted CSINode again.
func TestRunRestores(t *testing.T) {
	story(t, nil, func(t *testing.T, w *world) {
		w.install(driverD())
		defer w.run()()
		w.c.ResetWrites()
		time.Sleep(10 * time.Minute)
		w.expectWrites()

		if err := w.c.Remove("csinodes", "", nodeName); err != nil {
			t.Fatal(err)
		}
		if err := w.c.Merge("nodes", "", nodeName, []byte(`{"metadata":{"labels":null,"annotations":null}}`)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(61 * time.Second)
		// Two goroutines repair them, in any order.
		if got := slices.Sorted(slices.Values(w.takeWrites())); !slices.Equal(got, []string{"create csinodes", "patch nodes/status"}) {
			t.Errorf("writes %q, want one of each object", got)
		}
		w.expectIDs("d.example=id-1")
		if node := w.node(); node.Labels["topology.d.example/zone"] != "a" || node.Annotations[NodeIDAnnotation] != `{"d.example":"id-1"}` {
			t.Errorf("labels %v, annotations %v", node.Labels, node.Annotations)
		}

		if err := w.c.Remove("csinodes", "", nodeName); err != nil {
			t.Fatal(err)
		}
		w.w.Resync()
		w.w.Resync()
		synctest.Wait()
		w.expectWrites("create csinodes")
	})
}

// The scheduler believes what the CSINode says: a driver that went while the API server was away must not stay in
// it forever.
func TestUninstallThatFailedIsFinishedLater(t *testing.T) {
	cases := map[string]struct {
		reason  string
		verb    string
		what    string
		again   bool // installed again before Run comes to it
		ids     []string
		present bool // in the annotation
	}{
		"Entry":      {reason: "nothing was removed", verb: "update", what: "csinodes"},
		"Annotation": {reason: "only the entry was removed", verb: "patch", what: "nodes"},
		"Again":      {reason: "the driver has come back", verb: "update", what: "csinodes", again: true, ids: []string{"d.example=id-1"}, present: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			story(t, nil, func(t *testing.T, w *world) {
				w.install(driverD())
				w.c.Fail(tc.verb, tc.what, errors.New("connection refused"), 0)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := w.w.Uninstall(ctx, "d.example"); !errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("%s: Uninstall: %v, want the deadline", tc.reason, err)
				}
				w.c.Heal()
				if tc.again {
					w.install(driverD())
				}
				defer w.run()()
				time.Sleep(61 * time.Second)
				w.expectIDs(tc.ids...)
				if _, ok := w.node().Annotations[NodeIDAnnotation]; ok != tc.present {
					t.Errorf("%s: annotation is there: %v, want %v", tc.reason, ok, tc.present)
				}
				w.c.ResetWrites()
				time.Sleep(10 * time.Minute)
				w.expectWrites()
			})
		})
	}
}
