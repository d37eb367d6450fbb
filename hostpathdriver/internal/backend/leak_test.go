package backend

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/loop"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// outOfTime is a file system whose mount takes until the deadline of the call.
type outOfTime struct {
	filesystem.Filesystems

	end context.CancelFunc
}

func (o outOfTime) Mount(ctx context.Context, _, _ string, _ filesystem.Options) error {
	o.end()
	return ctx.Err()
}

// TestStageOutOfTimeLeavesNoDevice: a check of the file system that takes longer
// than the call is killed with it. Nothing of the call is left.
func TestStageOutOfTimeLeavesNoDevice(t *testing.T) {
	w := newWorld(t)
	ctx, end := context.WithCancel(w.ctx)
	w.systems = outOfTime{w.fakeFS, end}
	s := w.boot()
	v := s.createPlainImage("pvc-1", "ext4")
	wantErr(t, "stage", s.node.Stage(ctx, w.stageImage(v.ID, "ext4")), context.Canceled)
	if left := w.attached(); len(left) > 0 {
		t.Errorf("after the failure devices are attached: %v", left)
	}
	w.must(s.node.Unstage(s.ctx, v.ID, w.staging(v.ID)), s.volumes.Delete(s.ctx, v.ID))
	if left := slices.Concat(w.files(), w.attached()); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestRecordStaysUntilTheUndoSucceeded: what could not be undone is known to
// NodeUnstageVolume.
func TestRecordStaysUntilTheUndoSucceeded(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	v := s.createPlainImage("pvc-1", "ext4")
	w.must(s.node.Stage(s.ctx, w.stageImage(v.ID, "ext4")), s.node.Unstage(s.ctx, v.ID, w.staging(v.ID)))
	w.systems = failAndBreak{w.fakeFS, w.fakeLoop}
	s.node.cfg.Filesystems = w.systems
	err := s.node.Stage(s.ctx, w.stageImage(v.ID, "ext4"))
	wantErr(t, "stage", err, errTest)
	wantErr(t, "the outcome is not final", err, volume.ErrBusy)
	w.fakeLoop.Fail(nil)
	if len(w.attached()) != 1 || s.node.get(v.ID) == nil {
		t.Errorf("attached %v, record %+v; want a record of the device", w.attached(), s.node.get(v.ID))
	}
	w.must(s.node.Unstage(s.ctx, v.ID, w.staging(v.ID)), s.volumes.Delete(s.ctx, v.ID))
	if left := slices.Concat(w.files(), w.attached()); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// failAndBreak is a file system that cannot be mounted, on devices that cannot
// be detached from then on.
type failAndBreak struct {
	filesystem.Filesystems

	loops *loop.Fake
}

func (f failAndBreak) Mount(context.Context, string, string, filesystem.Options) error {
	f.loops.Fail(errTest)
	return errTest
}

// TestStageThatCannotGrowLeavesNothing: the file system is mounted by then, and
// a mount holds its device.
func TestStageThatCannotGrowLeavesNothing(t *testing.T) {
	for name, inline := range map[string]bool{"Staged": false, "Inline": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s := w.boot()
			ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
			defer cancel()
			w.fakeFS.Fail(filesystem.StepGrow, errTest)
			v := s.createPlainImage("pvc-1", "ext4")
			call := func() error { return s.node.Stage(ctx, w.stageImage(v.ID, "ext4")) }
			if inline {
				request := w.inlineRequest("csi-1", nil)
				request.Target.Capability = imageCapability("ext4")
				call = func() error { return s.node.Publish(ctx, request) }
			}
			wantErr(t, "the file system cannot grow", call(), errTest)
			if left := slices.Concat(w.fake.Targets(), w.attached()); len(left) > 0 {
				t.Errorf("after the failure: %v", left)
			}
			w.fakeFS.Fail(filesystem.StepGrow, nil)
			if err := call(); err != nil {
				t.Errorf("the next call: %v", err)
			}
		})
	}
}

// TestDeviceOfADeletedVolumeIsReleased: a volume is detached by force from a node
// that does not answer, and deleted. When the node is back its device goes.
func TestDeviceOfADeletedVolumeIsReleased(t *testing.T) {
	for name, restart := range map[string]bool{"Unstage": false, "Restart": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.attach = true
			s := w.boot()
			v := s.createBlock("pvc-1")
			_, err := s.volumes.Publish(s.ctx, &volume.PublishRequest{ID: v.ID, Node: testNode, Capability: blockSharer()})
			w.must(err, s.node.Stage(s.ctx, w.stageBlock(v.ID)))
			w.must(s.volumes.Unpublish(s.ctx, v.ID, testNode), s.volumes.Delete(s.ctx, v.ID))
			if restart {
				s = w.boot()
			}
			w.must(s.node.Unstage(s.ctx, v.ID, w.staging(v.ID)))
			if left := slices.Concat(w.files(), w.attached()); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// TestMountOfADeletedVolumeKeepsItsRecord: the CO still has to unstage it, after
// a restart, too.
func TestMountOfADeletedVolumeKeepsItsRecord(t *testing.T) {
	w := newWorld(t)
	w.attach = true
	s := w.boot()
	v := s.createPlainImage("pvc-1", "ext4")
	_, err := s.volumes.Publish(s.ctx, &volume.PublishRequest{ID: v.ID, Node: testNode, Capability: imageCapability("ext4")})
	w.must(err, s.node.Stage(s.ctx, w.stageImage(v.ID, "ext4")))
	w.must(s.volumes.Unpublish(s.ctx, v.ID, testNode), s.volumes.Delete(s.ctx, v.ID))
	s = w.boot()
	if s.node.get(v.ID) == nil {
		t.Error("the record is gone, and the file system is mounted")
	}
	w.must(s.node.Unstage(s.ctx, v.ID, w.staging(v.ID)))
	if left := slices.Concat(w.files(), w.fake.Targets(), w.attached()); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestDeviceWithoutARecordIsReleasedAtStart: of the devices of files in the state
// directory those go that no record names and that nothing is mounted of.
func TestDeviceWithoutARecordIsReleasedAtStart(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	orphan, deleted, mounted, staged, other := s.createBlock("orphan"), s.createBlock("deleted"), s.createBlock("mounted"), s.createBlock("staged"), s.createBlock("other")
	w.must(s.node.Stage(s.ctx, w.stageBlock(staged.ID)))
	attach := func(file string) string {
		device, err := w.fakeLoop.Attach(w.ctx, file, false)
		w.must(err)
		return device
	}
	for _, v := range []*volume.Volume{orphan, deleted, other} {
		attach(s.diskOf(v.ID))
	}
	w.must(os.RemoveAll(w.contents(deleted.ID)))
	w.writeFile(filepath.Join(w.pods, "node"), "")
	w.must(w.fake.Bind(w.ctx, attach(s.diskOf(mounted.ID)), filepath.Join(w.pods, "node"), mountNothing()))
	w.writeFile(filepath.Join(nodeDir(w.stateDir, "node-2"), recordsDir, string(other.ID)+".json"), "{}")
	// Those of other drivers: one with the same path in its container, one in the
	// same directory of a pool.
	foreign := filepath.Join(w.pods, "volumes", string(orphan.ID), "disk")
	pool := filepath.Join(w.pods, "pool")
	shared := filepath.Join(pool, "home", "volumes", string(orphan.ID), "disk")
	for _, file := range []string{foreign, shared} {
		w.writeFile(file, string(make([]byte, 4096)))
		attach(file)
	}
	w.poolDirs = map[string]string{"fast": pool}

	w.boot()
	want := []string{filepath.Join(w.stateDir, volumesDir, string(mounted.ID), diskName), filepath.Join(w.stateDir, volumesDir, string(staged.ID), diskName),
		filepath.Join(w.stateDir, volumesDir, string(other.ID), diskName), foreign, shared}
	var got []string
	for _, device := range w.fakeLoop.Table() {
		got = append(got, device.File)
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("after the start devices show %v, want %v", got, want)
	}
}

func (s *system) diskOf(id volume.ID) string { return filepath.Join(s.contents(id), diskName) }

// createPlainImage makes an image that needs no privilege.
func (s *system) createPlainImage(name, fsType string) *volume.Volume {
	s.t.Helper()
	req := imageRequest(name, fsType)
	req.Parameters = nil
	v, err := s.volumes.Create(s.ctx, req)
	s.must(err)
	return v
}
