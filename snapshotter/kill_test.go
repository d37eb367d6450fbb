package snapshotter

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// killKind is a kind of content in TestKilled.
type killKind struct {
	resource, call string
	beingCreated   string
	beingDeleted   string
	content        kube.Object
	snapshots      int // that the driver takes for it
}

func killKinds() map[string]killKind {
	return map[string]killKind{
		"Snapshot": {"volumesnapshotcontents", "CreateSnapshot", snapshotapi.AnnBeingCreated, snapshotapi.AnnBeingDeleted, testContent("u1", "vol-0"), 1},
		"Group": {
			"volumegroupsnapshotcontents", "CreateVolumeGroupSnapshot", snapshotapi.AnnGroupBeingCreated, snapshotapi.AnnGroupBeingDeleted,
			testGroupContent("u1", "vol-0", "vol-1"), 2,
		},
	}
}

// TestKilled kills the process at each request on the way of a snapshot from its content to its handle, before and after the request takes
// effect (S1). While there is no process, the content is left, or deleted, or deleted by a snapshot-controller of the external-snapshotter, which
// erases being-created. The next process leaves the content with its snapshot, or neither.
func TestKilled(t *testing.T) {
	points := map[string]func(w *walk, k killKind){
		"BeforeMark":     func(w *walk, k killKind) { w.killAtPatch(k.resource, false) },
		"AfterMark":      func(w *walk, k killKind) { w.killAtPatch(k.resource, true) },
		"BeforeCall":     func(w *walk, k killKind) { w.killAtCall(k.call, codes.Unavailable, func() {}) },
		"AfterCall":      func(w *walk, k killKind) { w.killAtCall(k.call, codes.OK, func() {}) },
		"BeforeStatus":   func(w *walk, k killKind) { w.killAtPatch(k.resource+"/status", false) },
		"AfterStatus":    func(w *walk, k killKind) { w.killAtPatch(k.resource+"/status", true) },
		"BeforeRelease":  func(w *walk, k killKind) { w.beforeCall(k.call, func() { w.killAtPatch(k.resource, false) }) },
		"AfterRelease":   func(w *walk, k killKind) { w.beforeCall(k.call, func() { w.killAtPatch(k.resource, true) }) },
		"AfterUncertain": func(w *walk, k killKind) { w.failAfter(k.call); w.killAtPatch(k.resource+"/status", true) },
	}
	meanwhile := map[string]func(k killKind) string{
		"Kept":    func(killKind) string { return "" },
		"Deleted": func(k killKind) string { return fmt.Sprintf(`{%q:"yes"}`, k.beingDeleted) },
		"Erased":  func(k killKind) string { return fmt.Sprintf(`{%q:"yes",%q:null}`, k.beingDeleted, k.beingCreated) },
	}
	for kindName, kind := range killKinds() {
		for pointName, arm := range points {
			for what, annotations := range meanwhile {
				t.Run(kindName+pointName+what, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { killOnce(t, kind, arm, annotations(kind)) })
				})
			}
		}
	}
}

// killOnce lets a process come to the point that arm sets, changes the annotations, deletes the content if they are to change, and compares.
func killOnce(t *testing.T, kind killKind, arm func(*walk, killKind), annotations string) {
	t.Helper()
	w := newWalk(t, rand.New(rand.NewPCG(1, 0)), csitest.Options{}) //nolint:gosec // nothing is random here
	w.launch()
	arm(w, kind)
	w.must(w.cluster.Apply(kind.content))
	<-time.After(5 * time.Second)
	w.end(true)
	w.driver.Heal()
	w.cluster.Heal()
	if annotations != "" {
		w.must(w.cluster.Merge(kind.resource, "", kind.content.GetName(), []byte(`{"metadata":{"annotations":`+annotations+`}}`)))
		w.must(w.cluster.Remove(kind.resource, "", kind.content.GetName()))
	}
	w.launch()
	<-time.After(5 * time.Minute)
	w.end(false)

	left := w.cluster.Objects(kind.resource)
	if annotations != "" {
		if len(left) > 0 || len(w.driver.Snapshots()) > 0 || len(w.driver.GroupSnapshots()) > 0 {
			t.Errorf("contents %v, snapshots %v, group snapshots %v are left", left, w.driver.Snapshots(), w.driver.GroupSnapshots())
		}
		return
	}
	if len(left) != 1 || len(w.driver.Snapshots()) != kind.snapshots {
		t.Fatalf("there are contents %v, snapshots %v; want one content and its snapshot", left, w.driver.Snapshots())
	}
	w.compareAll()
}

// killAtPatch cuts the process off at its next patch of a resource.
func (w *walk) killAtPatch(resource string, after bool) {
	w.cluster.Inject(kubetest.Fault{Verb: "patch", Resource: resource, After: after, Times: 1, Do: w.session.Cut, Err: kubetest.ErrCut})
}

// beforeCall does something when the process calls the driver.
func (w *walk) beforeCall(method string, do func()) { w.killAtCallWith(method, codes.Code(0), do) }

// killAtCall cuts the process off when it calls the driver, which answers with that code.
func (w *walk) killAtCall(method string, code codes.Code, do func()) {
	cut := w.session.Cut
	w.killAtCallWith(method, code, func() { cut(); do() })
}

func (w *walk) killAtCallWith(method string, code codes.Code, do func()) {
	done := false
	w.driver.Inject(csitest.Fault{Method: method, Code: code, Message: "killed", Times: 1, Match: func(proto.Message) bool {
		if !done {
			done = true
			do()
		}
		return code != codes.OK
	}})
}

// failAfter lets the next call take effect, and its answer say nothing.
func (w *walk) failAfter(method string) {
	w.driver.Inject(csitest.Fault{Method: method, Code: codes.DeadlineExceeded, Message: "slow", After: true, Times: 1})
}
