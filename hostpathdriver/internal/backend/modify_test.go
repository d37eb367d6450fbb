package backend

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

func TestModify(t *testing.T) {
	w := newWorld(t)
	w.mutable = volume.Mutable{Enabled: true, Names: []string{"iops", "tier"}}
	s := w.boot()
	request := createRequest("pvc-1")
	request.Mutable = map[string]string{"iops": "100"}
	v, err := s.volumes.Create(s.ctx, request)
	w.must(err)
	w.must(s.volumes.Modify(s.ctx, v.ID, map[string]string{"tier": "gold"}), s.volumes.Modify(s.ctx, v.ID, map[string]string{"iops": "200"}))
	wantErr(t, "all or none", s.volumes.Modify(s.ctx, v.ID, map[string]string{"iops": "300", "other": "x"}), volume.ErrInvalid)
	wantErr(t, "unknown volume", s.volumes.Modify(s.ctx, "unknown", map[string]string{"iops": "1"}), volume.ErrNotFound)
	for _, s := range []*system{s, w.boot()} {
		got, err := s.volumes.Get(s.ctx, v.ID)
		w.must(err)
		if diff := cmp.Diff(map[string]string{"iops": "200", "tier": "gold"}, got.MutableParameters); diff != "" {
			t.Errorf("parameters (-want +got):\n%s", diff)
		}
	}
	request.Name, request.Mutable = "pvc-2", map[string]string{"other": "x"}
	_, err = s.volumes.Create(s.ctx, request)
	wantErr(t, "create with an unknown parameter", err, volume.ErrInvalid)
}

// TestRepeatedModifyWritesNothing: the record is not written when it says what
// is asked for already.
func TestRepeatedModifyWritesNothing(t *testing.T) {
	w := newWorld(t)
	w.mutable = volume.Mutable{Enabled: true, Names: []string{volume.AnyName}}
	s := w.boot()
	v := s.create("pvc-1")
	w.must(s.volumes.Modify(s.ctx, v.ID, map[string]string{"iops": "100"}))
	s.volumes.cfg.Step = func(name string) { t.Errorf("%s", errors.New(name)) }
	w.must(s.volumes.Modify(s.ctx, v.ID, map[string]string{"iops": "100"}), s.volumes.Modify(s.ctx, v.ID, nil))
}

// TestModifyReadAhead: a node sets the read-ahead of the devices of a volume in use, of
// those that it attaches later, and after a restart what the process before has missed.
func TestModifyReadAhead(t *testing.T) {
	w := newWorld(t)
	w.mutable.Enabled = true
	s := w.boot()
	request := blockRequest("pvc-1")
	request.Mutable = map[string]string{"readAheadKiB": "4"}
	v, err := s.volumes.Create(s.ctx, request)
	w.must(err)
	wantReadAhead := func(when string, want ...int64) {
		t.Helper()
		var got []int64
		for _, d := range w.fakeLoop.Table() {
			got = append(got, d.ReadAhead)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: read-ahead (-want +got):\n%s", when, diff)
		}
	}
	modify := func(value string) error {
		return s.volumes.Modify(s.ctx, v.ID, map[string]string{"readAheadKiB": value})
	}
	w.must(modify("8"), s.node.Stage(s.ctx, w.stageBlock(v.ID)))
	wantReadAhead("staged", 8<<10)
	w.must(modify("16"))
	wantReadAhead("modified", 8<<10)
	w.must(s.node.Reconcile(s.ctx, v.ID), s.node.Reconcile(s.ctx, v.ID))
	wantReadAhead("reconciled", 16<<10)
	reader := w.targetBlock(v.ID)
	reader.Target.ReadOnly = true
	w.must(s.node.Publish(s.ctx, reader))
	wantReadAhead("published read-only, with a device of its own", 16<<10, 16<<10)

	w.must(modify("32"))
	s = w.boot()
	wantReadAhead("restarted", 32<<10, 32<<10)
	wantErr(t, "a bad value", modify("33"), volume.ErrInvalid)
	wantErr(t, "a bad value beside a good one",
		s.volumes.Modify(s.ctx, v.ID, map[string]string{"readAheadKiB": "64", "other": "x"}), volume.ErrInvalid)
	s = w.boot()
	wantReadAhead("refused", 32<<10, 32<<10)

	w.must(modify("64"))
	w.fakeLoop.Fail(errTest)
	wantErr(t, "the device cannot be set", s.node.Reconcile(s.ctx, v.ID), errTest)
	if got := s.node.Pending(); len(got) != 1 {
		t.Errorf("pending after a failure: %v", got)
	}
	w.fakeLoop.Fail(nil)
	w.must(s.node.Reconcile(s.ctx, v.ID))
	wantReadAhead("after the failure", 64<<10, 64<<10)
}

// TestReadAheadOfADirectory: it has no device.
func TestReadAheadOfADirectory(t *testing.T) {
	w := newWorld(t)
	w.mutable.Enabled = true
	s := w.boot()
	v := s.create("pvc-1")
	parameters := map[string]string{"readAheadKiB": "8"}
	wantErr(t, "modify", s.volumes.Modify(s.ctx, v.ID, parameters), volume.ErrInvalid)
	request := createRequest("pvc-2")
	request.Mutable = parameters
	_, err := s.volumes.Create(s.ctx, request)
	wantErr(t, "create", err, volume.ErrInvalid)
}
