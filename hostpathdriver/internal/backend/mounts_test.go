package backend

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// TestReadOnlyFileSystemIsDegraded: the kernel makes a file system read-only
// after an I/O error. That is reported, and a repeated call repairs it or fails.
func TestReadOnlyFileSystemIsDegraded(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	v, directory := s.createPlainImage("pvc-1", "ext4"), s.create("pvc-2")
	w.must(s.node.Stage(s.ctx, w.stageImage(v.ID, "ext4")), s.node.Publish(s.ctx, w.targetImage(v.ID)))
	w.must(s.node.Stage(s.ctx, w.stageRequest(directory.ID)), s.node.Publish(s.ctx, w.targetRequest(directory.ID)))
	for _, id := range []volume.ID{v.ID, directory.ID} {
		w.fake.Break(w.staging(id))
		for _, path := range []string{w.staging(id), w.target(id)} {
			health, err := s.node.Health(s.ctx, id, path)
			w.must(err)
			if len(health.Conditions) != 1 || health.Conditions[0].Reason != reasonReadOnly || health.Conditions[0].Severity != volume.Degraded {
				t.Errorf("health at %s: %+v, want %s", path, health.Conditions, reasonReadOnly)
			}
			if matches, err := s.node.MountMatches(s.ctx, s.node.get(id), path); matches || err != nil {
				t.Errorf("%s matches: %t, %v", path, matches, err)
			}
		}
	}
	wantErr(t, "stage while it is published", s.node.Stage(s.ctx, w.stageImage(v.ID, "ext4")), volume.ErrPrecondition)
	wantErr(t, "publish again", s.node.Publish(s.ctx, w.targetImage(v.ID)), volume.ErrPrecondition)
	wantErr(t, "stage a directory", s.node.Stage(s.ctx, w.stageRequest(directory.ID)), volume.ErrPrecondition)
	wantErr(t, "publish a directory", s.node.Publish(s.ctx, w.targetRequest(directory.ID)), volume.ErrPrecondition)

	w.must(s.node.Unpublish(s.ctx, v.ID, w.target(v.ID)), s.node.Stage(s.ctx, w.stageImage(v.ID, "ext4")), s.node.Publish(s.ctx, w.targetImage(v.ID)))
	health, err := s.node.Health(s.ctx, v.ID, w.target(v.ID))
	if err != nil || len(health.Conditions) > 0 {
		t.Errorf("after it was staged again: %+v, %v", health, err)
	}
}

// TestForeignMountsStay: only what shows the volume is unmounted, whatever path
// the CO names.
func TestForeignMountsStay(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	v, block, other := s.create("pvc-1"), s.createBlock("pvc-2"), s.create("pvc-3")
	foreign, path := filepath.Join(w.pods, "foreign"), filepath.Join(w.pods, "path")
	w.must(os.Mkdir(foreign, 0o700), os.Mkdir(path, 0o700), w.fake.Bind(w.ctx, foreign, path, mountNothing()))
	w.must(s.node.Stage(s.ctx, w.stageRequest(v.ID)), s.node.Stage(s.ctx, w.stageRequest(other.ID)))
	for _, id := range []volume.ID{v.ID, block.ID, "unknown"} {
		for _, at := range []string{path, w.staging(other.ID)} {
			wantErr(t, "unstage", s.node.Unstage(s.ctx, id, at), volume.ErrPrecondition)
			wantErr(t, "unpublish", s.node.Unpublish(s.ctx, id, at), volume.ErrPrecondition)
		}
	}
	if w.shown(path) != foreign || w.shown(w.staging(other.ID)) == "" {
		t.Errorf("mounted are %v", w.fake.Targets())
	}
	// What shows the volume goes, also without a record of it.
	w.must(w.fake.Bind(w.ctx, w.contents(v.ID), w.makeDir("lost"), mountNothing()), s.node.Unstage(s.ctx, v.ID, filepath.Join(w.pods, "lost")))
	if w.shown(filepath.Join(w.pods, "lost")) != "" {
		t.Error("a mount of the volume stays")
	}
}

func (w *world) makeDir(name string) string {
	path := filepath.Join(w.pods, name)
	w.must(os.MkdirAll(path, 0o700))
	return path
}
