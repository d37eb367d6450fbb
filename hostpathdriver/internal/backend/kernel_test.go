package backend

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// TestWithRealMounts is the life of two volumes with the mount table of the
// kernel, over a restart of the driver.
func TestWithRealMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	w := newWorld(t)
	w.mounter = mount.Kernel{}
	s := w.boot()
	v := s.create("pvc-1")
	reader := w.targetRequest(v.ID)
	reader.Target.Path += "-reader"
	reader.Target.ReadOnly = true
	inline := w.inlineRequest("csi-1", nil)
	for _, path := range []string{w.target(v.ID), reader.Target.Path, w.staging(v.ID), inline.Target.Path} {
		t.Cleanup(func() { unix.Unmount(path, unix.MNT_DETACH) }) // only when the test has failed
	}
	w.must(s.node.Stage(s.ctx, w.stageRequest(v.ID)), s.node.Publish(s.ctx, w.targetRequest(v.ID)),
		s.node.Publish(s.ctx, reader), s.node.Publish(s.ctx, inline))

	w.writeFile(filepath.Join(w.target(v.ID), "file"), "hello")
	w.writeFile(filepath.Join(inline.Target.Path, "file"), "scratch")
	for _, path := range []string{w.contents(v.ID), reader.Target.Path, w.staging(v.ID)} {
		if got, err := os.ReadFile(filepath.Join(path, "file")); err != nil || string(got) != "hello" {
			t.Errorf("read through %s: %q, %v", path, got, err)
		}
	}
	if err := os.WriteFile(filepath.Join(reader.Target.Path, "file"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("write to the read-only target: %v, want EROFS", err)
	}

	s = w.boot()
	if all := s.node.All(); len(all) != 2 {
		t.Fatalf("after a restart the node remembers %d volumes, want 2", len(all))
	}
	wantErr(t, "delete while mounted", s.volumes.Delete(s.ctx, v.ID), volume.ErrInUse)
	w.must(s.node.Unpublish(s.ctx, v.ID, w.target(v.ID)), s.node.Unpublish(s.ctx, v.ID, reader.Target.Path),
		s.node.Unstage(s.ctx, v.ID, w.staging(v.ID)), s.node.Unpublish(s.ctx, "csi-1", inline.Target.Path),
		s.volumes.Delete(s.ctx, v.ID))
	if left := w.files(); len(left) > 0 {
		t.Errorf("left on disk: %v", left)
	}
	if below, err := w.mounter.Below(s.ctx, w.pods); err != nil || len(below) > 0 {
		t.Errorf("mounts left: %v, %v", below, err)
	}
}
