package backend

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/loop"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// kernelImages makes a world use devices and file systems of the kernel.
func kernelImages(t *testing.T) *world {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("devices need root")
	}
	w := newWorld(t)
	w.mounter, w.devices, w.systems = mount.Kernel{}, loop.Kernel{}, filesystem.NewKernel()
	t.Cleanup(func() { // only when the test has failed there is something left
		points, err := w.mounter.Below(context.Background(), w.pods)
		w.must(err)
		for _, point := range points {
			w.must(unix.Unmount(point, unix.MNT_DETACH))
		}
		disks, err := filepath.Glob(filepath.Join(w.stateDir, volumesDir, "*", diskName))
		w.must(err)
		for _, disk := range disks {
			w.must(w.devices.Detach(context.Background(), disk, false), w.devices.Detach(context.Background(), disk, true))
		}
	})
	return w
}

// TestSnapshotInUseIsRestoredReadOnly: its journal is not empty, and a read-only
// device takes no writes.
func TestSnapshotInUseIsRestoredReadOnly(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs"} {
		t.Run(fsType, func(t *testing.T) {
			w := kernelImages(t)
			s := w.boot()
			v := s.createPlainImage("pvc-1", fsType)
			w.must(s.node.Stage(s.ctx, w.stageImage(v.ID, fsType)))
			w.writeFile(filepath.Join(w.staging(v.ID), "file"), "hello")
			unix.Sync()
			taken := s.snapshot("snapshot", v.ID)
			reader := imageCapability(fsType)
			reader.Mode = volume.MultiNodeReaderOnly
			restored := s.restore(from("pvc-2", volume.Source{Snapshot: taken.ID}, func(req *volume.CreateRequest) { req.Capabilities = []volume.Capability{reader} }))
			request := w.stageImage(restored.ID, fsType)
			request.Stage.Capability = reader
			for range 2 {
				w.must(s.node.Stage(s.ctx, request))
				w.wantFile(filepath.Join(w.staging(restored.ID), "file"), "hello")
				if err := os.WriteFile(filepath.Join(w.staging(restored.ID), "new"), nil, 0o600); !errors.Is(err, unix.EROFS) {
					t.Errorf("write: %v, want EROFS", err)
				}
				w.must(s.node.Unstage(s.ctx, restored.ID, w.staging(restored.ID)))
			}
			w.must(s.node.Unstage(s.ctx, v.ID, w.staging(v.ID)), s.volumes.Delete(s.ctx, restored.ID), s.volumes.Delete(s.ctx, v.ID))
		})
	}
}
