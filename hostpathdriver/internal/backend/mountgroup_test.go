package backend

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/loop"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// ofGroup wants a path to belong to a group and to have the permissions.
func (w *world) ofGroup(path string, gid, mode uint32) {
	w.t.Helper()
	var st unix.Stat_t
	w.must(unix.Lstat(path, &st))
	if st.Gid != gid || st.Mode&0o7777 != mode {
		w.t.Errorf("%s: gid %d, mode %o, want %d, %o", path, st.Gid, st.Mode&0o7777, gid, mode)
	}
}

func (w *world) needRoot() {
	w.t.Helper()
	if os.Geteuid() != 0 {
		w.t.Skip("giving files to any group needs root")
	}
}

// grouped are the requests for a volume whose files go to the group.
func (w *world) grouped(id volume.ID, group string) (*volume.StageRequest, *volume.TargetRequest) {
	stage, target := w.stageRequest(id), w.targetRequest(id)
	stage.Stage.Capability.Group, target.Target.Capability.Group = group, group
	return stage, target
}

// checkShared reports whether a volume that is staged is its group's.
func (s *system) checkShared(id volume.ID) error {
	info, err := os.Stat(s.contents(id))
	if err != nil {
		return err
	}
	known, err := s.node.Lookup(s.ctx, id)
	if err == nil && (known.Stage.Sharing || info.Mode()&fs.ModeSetgid == 0) {
		err = fmt.Errorf("volume %q is published, staged as %+v, with mode %v", id, known.Stage, info.Mode())
	}
	return err
}

func TestMountGroup(t *testing.T) {
	w := newWorld(t)
	w.needRoot()
	s := w.boot()
	v := s.create("pvc-1")
	file := filepath.Join(w.contents(v.ID), "dir", "file")
	w.writeFile(file, "data")
	stage, target := w.grouped(v.ID, "2000")
	w.must(s.node.Stage(s.ctx, stage))
	w.ofGroup(w.contents(v.ID), 2000, 0o2777)
	w.ofGroup(filepath.Dir(file), 2000, 0o2770)
	w.ofGroup(file, 2000, 0o660)

	w.must(unix.Chown(file, -1, 7))
	w.must(s.node.Publish(s.ctx, target))
	w.ofGroup(file, 7, 0o660) // staging has done it: publishing does not look again
	second := w.targetRequest(v.ID)
	second.Target.Path += "-second"
	second.Target.Capability.Group = "3000"
	w.must(s.node.Publish(s.ctx, second))
	w.ofGroup(file, 3000, 0o660)
	second.Target.Path, second.Target.Capability.Group, second.Target.ReadOnly = second.Target.Path+"-reader", "4000", true
	w.must(s.node.Publish(s.ctx, second))
	w.ofGroup(file, 3000, 0o660)
}

// TestMountGroupOfReaders: who cannot write changes nothing.
func TestMountGroupOfReaders(t *testing.T) {
	w := newWorld(t)
	w.needRoot()
	s := w.boot()
	v := s.create("pvc-1")
	stage, target := w.grouped(v.ID, "2000")
	stage.Stage.Capability.Mode, target.Target.Capability.Mode = volume.MultiNodeReaderOnly, volume.MultiNodeReaderOnly
	w.must(s.node.Stage(s.ctx, stage), s.node.Publish(s.ctx, target))
	w.ofGroup(w.contents(v.ID), uint32(os.Getgid()), 0o777)
}

// TestMountGroupIsFinished: a call that ends before all files are the group's is
// repeated and goes on, also over a restart; until then nothing is published.
func TestMountGroupIsFinished(t *testing.T) {
	w := newWorld(t)
	w.needRoot()
	s := w.boot()
	v := s.create("pvc-1")
	file := filepath.Join(w.contents(v.ID), "file")
	w.writeFile(file, "data")
	stage, target := w.grouped(v.ID, "2000")
	ctx, cancel := context.WithCancel(w.ctx)
	w.step = func(name string) {
		if name == "share" {
			cancel()
		}
	}
	s = w.boot()
	wantErr(t, "stage", s.node.Stage(ctx, stage), context.Canceled)
	w.step = nil
	s = w.boot()
	known, err := s.node.Lookup(s.ctx, v.ID)
	w.must(err)
	if verdict, err := known.CheckStage(&stage.Stage); verdict != volume.Proceed || err != nil {
		t.Errorf("repeated: verdict %v, %v, want proceed", verdict, err)
	}
	wantErr(t, "publish", s.node.Publish(s.ctx, target), volume.ErrPrecondition)
	w.must(s.node.Stage(s.ctx, stage), s.node.Publish(s.ctx, target))
	w.ofGroup(file, 2000, 0o660)
	known, err = s.node.Lookup(s.ctx, v.ID)
	w.must(err)
	if verdict, err := known.CheckStage(&stage.Stage); verdict != volume.AlreadyDone || err != nil {
		t.Errorf("after that: verdict %v, %v, want already done", verdict, err)
	}
	w.must(s.node.Unpublish(s.ctx, v.ID, w.target(v.ID)), s.node.Unstage(s.ctx, v.ID, w.staging(v.ID)))
}

// TestMountGroupOfInlineVolumes: the pod can use what its group may, pod
// information as well, also after it was renewed.
func TestMountGroupOfInlineVolumes(t *testing.T) {
	w := newWorld(t)
	w.needRoot()
	s := w.boot()
	req := w.podRequest()
	req.Inline.Attributes["mode"] = "0700"
	req.Target.Capability.Group = "2000"
	w.must(s.node.Publish(s.ctx, req))
	for range 2 {
		w.ofGroup(w.inlineContents("csi-1"), 2000, 0o2770)
		w.ofGroup(filepath.Join(w.inlineContents("csi-1"), "tokens"), 2000, 0o660)
		w.ofGroup(filepath.Join(w.inlineContents("csi-1"), "pod.name"), 2000, 0o664)
		req.Inline.Pod.Tokens, req.Inline.Pod.Name = "second", "other"
		w.must(s.node.Renew(s.ctx, req))
	}
}

// TestMountGroupOfImages: the root directory of a file system belongs to the
// group, that of an inline volume too.
func TestMountGroupOfImages(t *testing.T) {
	w := newWorld(t)
	w.needRoot()
	w.mounter, w.devices, w.systems = mount.Kernel{}, loop.Kernel{}, filesystem.NewKernel()
	s := w.boot()
	create := imageRequest("pvc-1", "ext4")
	create.Range.Required = 16 << 20
	v, err := s.volumes.Create(s.ctx, create)
	w.must(err)
	inline := w.inlineRequest("csi-1", map[string]string{"size": "16Mi", "mode": "0700"})
	inline.Target.Capability.FSType, inline.Target.Capability.Group = "ext4", "2000"
	t.Cleanup(func() { // only when the test has failed
		for _, path := range []string{w.staging(v.ID), inline.Target.Path} {
			unix.Unmount(path, unix.MNT_DETACH)
		}
		w.devices.Detach(w.ctx, filepath.Join(w.contents(v.ID), diskName), false)
		w.devices.Detach(w.ctx, filepath.Join(w.inlineContents("csi-1"), diskName), false)
	})
	stage := w.stageImage(v.ID, "ext4")
	stage.Stage.Capability.Group = "2000"
	w.must(s.node.Stage(s.ctx, stage))
	w.ofGroup(w.staging(v.ID), 2000, 0o2770)
	w.must(s.node.Unstage(s.ctx, v.ID, w.staging(v.ID)))
	w.must(s.node.Publish(s.ctx, inline))
	w.ofGroup(inline.Target.Path, 2000, 0o2770)
	w.must(s.node.Unpublish(s.ctx, "csi-1", inline.Target.Path))
}
