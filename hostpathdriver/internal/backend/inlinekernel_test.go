package backend

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/loop"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/needs"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// kernelWorld has the devices, file systems and mounts of the machine.
func kernelWorld(t *testing.T, targets ...volume.ID) *world {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("devices and mounts need root")
	}
	w := newWorld(t)
	w.mounter, w.devices, w.systems = mount.Kernel{}, loop.Kernel{}, filesystem.NewKernel()
	t.Cleanup(func() { // only when the test has failed
		for _, id := range targets {
			unix.Unmount(w.target(id), unix.MNT_DETACH)
			w.devices.Detach(w.ctx, filepath.Join(w.inlineContents(id), diskName), false)
			w.devices.Detach(w.ctx, filepath.Join(w.inlineContents(id), diskName), true)
		}
	})
	return w
}

// TestInlineImagesOfTheKernel: fsType is the type of the file system, size its
// size, mode and owner those of its root directory.
func TestInlineImagesOfTheKernel(t *testing.T) {
	needs.Time(t)
	const id = "csi-1"
	for _, fsType := range support().FSTypes {
		t.Run(fsType, func(t *testing.T) {
			w := kernelWorld(t, id)
			needType(t, w.systems, fsType)
			s := w.boot()
			size := max(32<<20, filesystem.MinSize(fsType))
			req := w.inlineRequest(id, map[string]string{"size": strconv.FormatInt(size, 10), "mode": "2750", "uid": "1234", "gid": "567"})
			req.Target.Capability.FSType = fsType
			w.must(s.node.Publish(s.ctx, req))
			var st unix.Stat_t
			w.must(unix.Stat(w.target(id), &st))
			if st.Uid != 1234 || st.Gid != 567 || st.Mode&0o7777 != 0o2750 {
				t.Errorf("root directory: uid %d, gid %d, mode %o", st.Uid, st.Gid, st.Mode&0o7777)
			}
			stats, err := s.node.Stats(s.ctx, id, w.target(id))
			if err != nil || stats.Bytes.Total < size/2 || stats.Bytes.Total > size {
				t.Errorf("stats %+v, %v", stats, err)
			}
			if err := fill(filepath.Join(w.target(id), "large")); !errors.Is(err, unix.ENOSPC) {
				t.Errorf("fill it: %v, want ENOSPC", err)
			}
			w.must(s.node.Publish(s.ctx, req), s.node.Unpublish(s.ctx, id, w.target(id)), s.node.Unpublish(s.ctx, id, w.target(id)))
			if left := w.files(); len(left) > 0 || !gone(w.target(id)) {
				t.Errorf("left: %v, target gone: %t", left, gone(w.target(id)))
			}
		})
	}
}

// TestReadOnlyInlineVolumesOfTheKernel cannot be written to, whatever they are
// kept in.
func TestReadOnlyInlineVolumesOfTheKernel(t *testing.T) {
	for name, fsType := range map[string]string{"Directory": "", "Image": "ext4"} {
		t.Run(name, func(t *testing.T) {
			w := kernelWorld(t, "csi-1")
			s := w.boot()
			req := w.inlineRequest("csi-1", map[string]string{"size": "16Mi"})
			req.Target.Capability.FSType, req.Target.ReadOnly = fsType, true
			w.must(s.node.Publish(s.ctx, req))
			if err := os.WriteFile(filepath.Join(w.target("csi-1"), "file"), nil, 0o600); !errors.Is(err, unix.EROFS) {
				t.Errorf("write: %v, want EROFS", err)
			}
			w.must(s.node.Unpublish(s.ctx, "csi-1", w.target("csi-1")))
		})
	}
}

// TestInlineImageOfTheKernelIsCollected: the pod went while the driver was down,
// and its mount with it. The device goes with the volume.
func TestInlineImageOfTheKernelIsCollected(t *testing.T) {
	w := kernelWorld(t, "csi-1")
	s := w.boot()
	req := w.inlineRequest("csi-1", map[string]string{"size": "16Mi"})
	req.Target.Capability.FSType = "ext4"
	w.must(s.node.Publish(s.ctx, req))
	w.must(unix.Unmount(w.target("csi-1"), 0), os.Remove(w.target("csi-1")))
	disk := filepath.Join(w.inlineContents("csi-1"), diskName)
	s = w.boot()
	if left := w.files(); len(left) > 0 || len(s.node.All()) > 0 {
		t.Errorf("left: %v, %v", left, s.node.All())
	}
	if device, err := w.devices.Device(w.ctx, disk, false); device != "" {
		t.Errorf("device %s is left (%v)", device, err)
	}
}
