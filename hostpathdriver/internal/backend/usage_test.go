package backend

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

func TestStats(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	v := s.create("pvc-1")
	w.must(s.node.Stage(s.ctx, w.stageRequest(v.ID)), s.node.Publish(s.ctx, w.targetRequest(v.ID)), s.node.Publish(s.ctx, w.inlineRequest("csi-1", nil)))
	w.writeFile(filepath.Join(w.contents(v.ID), "deep", "file"), strings.Repeat("x", 1<<20))
	w.must(os.Link(filepath.Join(w.contents(v.ID), "deep", "file"), filepath.Join(w.contents(v.ID), "link")))
	for _, path := range []string{w.staging(v.ID), w.target(v.ID)} {
		got, err := s.node.Stats(s.ctx, v.ID, path)
		w.must(err)
		// One megabyte counted once, some blocks for directories; an
		// overlay file system may take less than a block.
		if b := got.Bytes; b.Total != gib || b.Used < 1<<20 || b.Used > 2<<20 || b.Available > gib-b.Used || b.Available <= 0 {
			t.Errorf("bytes at %s: %+v", path, b)
		}
		if i := got.Inodes; i.Used != 3 || i.Total != i.Used+i.Available {
			t.Errorf("inodes at %s: %+v, want 3 used: volume, directory, file", path, i)
		}
	}
	got, err := s.node.Stats(s.ctx, "csi-1", w.target("csi-1"))
	if err != nil || got.Bytes.Total != 100<<20 || got.Inodes.Used != 1 {
		t.Errorf("inline volume: %+v, %v", got, err)
	}
	for id, path := range map[volume.ID]string{"x": w.target(v.ID), v.ID: "/elsewhere", "csi-1": w.target(v.ID)} {
		_, err := s.node.Stats(s.ctx, id, path)
		wantErr(t, string(id)+" at "+path, err, volume.ErrNotFound)
	}
}

func TestStatsOfAFullVolume(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	req := createRequest("small")
	req.Range.Required = 1000
	v, err := s.volumes.Create(s.ctx, req)
	w.must(err, s.node.Stage(s.ctx, w.stageRequest(v.ID)))
	w.writeFile(filepath.Join(w.contents(v.ID), "file"), strings.Repeat("x", 1<<16))
	got, err := s.node.Stats(s.ctx, v.ID, w.staging(v.ID))
	if err != nil || got.Bytes.Available != 0 || got.Bytes.Used <= got.Bytes.Total {
		t.Errorf("more used than there is: %+v, %v, want nothing available", got, err)
	}
}

// TestMeterRests: a result is good for as long as twenty measurements would
// take. The clock is virtual, so a walk takes no time at all, and the rest is
// set by hand.
func TestMeterRests(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		m := meter{results: map[volume.ID]measurement{"a": {bytes: 7, inodes: 1, until: time.Now().Add(time.Minute)}}}
		read := func() measurement {
			got, err := m.measure(t.Context(), "a", root)
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		<-time.After(59 * time.Second)
		if got := read(); got.bytes != 7 {
			t.Errorf("measured again too early: %+v", got)
		}
		<-time.After(2 * time.Second)
		if got := read(); got.bytes == 7 || got.inodes != 1 {
			t.Errorf("not measured again: %+v", got)
		}
		m.forget("a")
		if len(m.results) != 0 {
			t.Errorf("not forgotten: %v", m.results)
		}
	})
}

func TestWalkEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := walk(ctx, t.TempDir()); !errors.Is(err, context.Canceled) {
		t.Errorf("walk with a context that is over: %v", err)
	}
	if _, err := walk(t.Context(), filepath.Join(t.TempDir(), "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("walk of nothing: %v", err)
	}
}
