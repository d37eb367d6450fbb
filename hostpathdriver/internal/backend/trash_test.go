package backend

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/mount"
)

// slowTrash is a mounter whose answers about the trash, without which nothing in it is removed, take until released.
type slowTrash struct {
	mount.Mounter
	released chan struct{}
}

// Below implements mount.Mounter.
func (s slowTrash) Below(ctx context.Context, dir string) ([]string, error) {
	if strings.Contains(dir, "/trash/") {
		<-s.released
	}
	return s.Mounter.Below(ctx, dir)
}

// slow makes the removal of deleted contents take until release is called, and calls impatient.
func slow(w *world) (release func()) {
	trash := slowTrash{w.mounts, make(chan struct{})}
	w.config.Mounter, w.config.Patience = trash, time.Nanosecond
	return func() { close(trash.released) }
}

// awaitEmptyTrash waits until what is removed in the background is gone.
func (w *world) awaitEmptyTrash() {
	w.t.Helper()
	for _, dir := range []string{w.state("trash"), w.state("nodes", testNode, "trash")} {
		w.await("an empty "+dir, func() bool {
			left, err := os.ReadDir(dir)
			w.must(err)
			return len(left) == 0
		})
	}
}

// await waits for a condition.
func (w *world) await(what string, met func() bool) {
	w.t.Helper()
	for end := time.Now().Add(2 * time.Minute); !met(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("waited in vain for %s", what)
		}
	}
}

// TestDeletionIsARename deletes what takes long to remove: the answer does not wait for that. The pool has the space when it is free, and not before.
func TestDeletionIsARename(t *testing.T) {
	w := newWorld(t)
	w.limits = map[string]int64{"fast": gib}
	release := slow(w)
	s := w.start()
	n := w.startNode()
	v := w.create(s, nil)
	w.write(w.state("volumes", v.ID, "file"), "data")
	snap := w.snapshot(s, "snap", v.ID)
	w.must(w.createInline(n, &driverkit.InlineRequest{ID: "csi-1", Capability: mounted()}))
	w.write(w.state("nodes", testNode, "volumes", "csi-1", "file"), "data")
	w.must(w.delete(s, v.ID), w.deleteSnapshot(s, snap.ID), n.DeleteInline(w.ctx, &driverkit.DeleteInlineRequest{ID: "csi-1"}))
	for range 2 {
		w.want("a repeated deletion of the volume", w.delete(s, v.ID), driverkit.ErrNotFound)
		w.want("a repeated deletion of the snapshot", w.deleteSnapshot(s, snap.ID), driverkit.ErrNotFound)
		w.want("a repeated deletion of the inline volume", n.DeleteInline(w.ctx, &driverkit.DeleteInlineRequest{ID: "csi-1"}), driverkit.ErrNotFound)
	}
	if left := w.left(s, "fast"); left >= gib-2*mib {
		t.Errorf("%d bytes of the pool are left while the trash is full", left)
	}
	release()
	w.awaitEmptyTrash()
	w.await("the pool to have its space", func() bool { return w.left(s, "fast") == gib })
	w.wantNothing()
}

// TestStartDoesNotWaitForTheTrash starts with a trash that takes long to empty: the calls of other tenants are served meanwhile.
func TestStartDoesNotWaitForTheTrash(t *testing.T) {
	w := newWorld(t)
	w.start().Close()
	for _, path := range []string{"trash/volume/file", "nodes/" + testNode + "/trash/inline/file", "copies/copy/file"} {
		w.write(w.state(path), "data")
	}
	release := slow(w)
	s := w.start()
	n := w.startNode()
	v := w.create(s, nil)
	_, err := n.Stage(w.ctx, w.stage(v.ID, mounted()))
	w.must(err, n.Unstage(w.ctx, w.unstage(v.ID)))
	release()
	w.must(w.delete(s, v.ID))
	w.awaitEmptyTrash()
	w.wantNothing()
}
