package backend

import (
	"slices"
	"testing"

	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// TestReconcileExpands: where the CO never calls NodeExpandVolume, the node expands
// what is staged, once, also after a restart, and after a failure.
func TestReconcileExpands(t *testing.T) {
	w := newWorld(t)
	w.alone = true
	s := w.boot()
	device, image, directory := s.createBlock("pvc-1"), s.createImage("pvc-2", "xfs"), s.create("pvc-3")
	w.must(
		s.node.Stage(s.ctx, w.stageBlock(device.ID)), s.node.Stage(s.ctx, w.stageImage(image.ID, "xfs")), s.node.Stage(s.ctx, w.stageRequest(directory.ID)),
	)
	wantPending := func(when string, want ...volume.ID) {
		t.Helper()
		slices.Sort(want)
		if got := s.node.Pending(); !slices.Equal(got, want) {
			t.Errorf("%s: pending %v, want %v", when, got, want)
		}
	}
	wantSizes := func(when string, want int64) {
		t.Helper()
		for _, shown := range w.fakeLoop.Table() {
			if shown.Size != want {
				t.Errorf("%s: %s has %d bytes, want %d", when, shown.File, shown.Size, want)
			}
		}
		stats, err := s.node.Stats(s.ctx, image.ID, w.staging(image.ID))
		if err != nil || stats.Bytes.Total != want {
			t.Errorf("%s: the file system has %+v, %v, want %d", when, stats, err, want)
		}
	}
	expand := func(size int64) {
		t.Helper()
		for _, id := range []volume.ID{device.ID, image.ID, directory.ID} {
			_, err := s.expand(id, size)
			w.must(err)
		}
	}
	wantPending("staged")
	expand(2 * gib)
	wantPending("expanded", device.ID, image.ID)
	w.must(s.node.Reconcile(s.ctx, device.ID), s.node.Reconcile(s.ctx, image.ID), s.node.Reconcile(s.ctx, directory.ID), s.node.Reconcile(s.ctx, "unknown"))
	wantPending("reconciled")
	wantSizes("reconciled", 2*gib)
	calls := len(w.fakeLoop.Calls())
	w.must(s.node.Reconcile(s.ctx, device.ID))
	if again := w.fakeLoop.Calls()[calls:]; len(again) > 0 {
		t.Errorf("reconciled twice: %v", again)
	}

	expand(3 * gib)
	s = w.boot()
	wantPending("restarted")
	wantSizes("restarted", 3*gib)

	w.fakeFS.Fail(filesystem.StepGrow, errTest)
	expand(4 * gib)
	wantErr(t, "a file system that cannot grow", s.node.Reconcile(s.ctx, image.ID), errTest)
	s = w.boot()
	wantPending("failed at the start", image.ID)
	w.fakeFS.Fail(filesystem.StepGrow, nil)
	w.must(s.node.Reconcile(s.ctx, image.ID))
	wantSizes("after the failure", 4*gib)

	w.must(s.node.Unstage(s.ctx, device.ID, w.staging(device.ID)))
	expand(5 * gib)
	wantPending("one is not staged", image.ID)
}

// TestReconcileBeforeTheFileHasGrown: the record says first how large a volume is to be.
// A node that looks between record and file expands nothing, and must look again.
func TestReconcileBeforeTheFileHasGrown(t *testing.T) {
	w := newWorld(t)
	w.alone = true
	s := w.boot()
	v := s.createBlock("pvc-1")
	w.must(s.node.Stage(s.ctx, w.stageBlock(v.ID)))
	s.volumes.cfg.Step = func(name string) {
		if name == "expand:contents" {
			w.must(s.node.Reconcile(s.ctx, v.ID))
		}
	}
	_, err := s.expand(v.ID, 2*gib)
	w.must(err)
	if pending := s.node.Pending(); len(pending) != 1 {
		t.Errorf("pending %v, want the volume", pending)
	}
	w.must(s.node.Reconcile(s.ctx, v.ID))
	if got := w.deviceSize(); got != 2*gib {
		t.Errorf("the device has %d bytes", got)
	}
}

// TestReconcileLeavesExpansionToTheCO: with NodeExpandVolume a size is not applied
// before the call, which may refuse it.
func TestReconcileLeavesExpansionToTheCO(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	v := s.createBlock("pvc-1")
	w.must(s.node.Stage(s.ctx, w.stageBlock(v.ID)))
	_, err := s.expand(v.ID, 2*gib)
	w.must(err, s.node.Reconcile(s.ctx, v.ID))
	if pending := s.node.Pending(); len(pending) > 0 || w.deviceSize() != gib {
		t.Errorf("pending %v, the device has %d bytes", pending, w.deviceSize())
	}
}

// TestInterruptedStageGrows: a process that ended between the mount and the growth of
// a file system has not answered, and the volume is not published.
func TestInterruptedStageGrows(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	unpublished, published := s.createImage("pvc-1", "xfs"), s.createImage("pvc-2", "xfs")
	for _, v := range []*volume.Volume{unpublished, published} {
		w.must(s.node.Stage(s.ctx, w.stageImage(v.ID, "xfs")))
	}
	w.must(s.node.Publish(s.ctx, w.targetImage(published.ID)))
	for id, want := range map[volume.ID]int64{unpublished.ID: 2 * gib, published.ID: gib} {
		_, err := s.expand(id, 2*gib)
		w.must(err)
		stats, err := w.boot().node.Stats(s.ctx, id, w.staging(id))
		if err != nil || stats.Bytes.Total != want {
			t.Errorf("%s: %+v, %v, want %d", id, stats, err, want)
		}
	}
}
