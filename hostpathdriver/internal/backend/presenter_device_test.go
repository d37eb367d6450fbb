package backend

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/driverkit/loop"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

func blockRequest(name string) *volume.CreateRequest {
	return &volume.CreateRequest{Name: name, Range: volume.Range{Required: gib}, Capabilities: []volume.Capability{blockWriter()}}
}

func (s *system) createBlock(name string) *volume.Volume {
	s.t.Helper()
	v, err := s.volumes.Create(s.ctx, blockRequest(name))
	if err != nil {
		s.t.Fatalf("create %s: %v", name, err)
	}
	return v
}

func (w *world) stageBlock(id volume.ID) *volume.StageRequest {
	return &volume.StageRequest{ID: id, Stage: volume.Stage{Path: w.staging(id), Capability: blockSharer()}}
}

func (w *world) targetBlock(id volume.ID) *volume.TargetRequest {
	return &volume.TargetRequest{ID: id, Target: volume.Target{Path: w.target(id), Source: w.staging(id), Capability: blockSharer()}}
}

// readerBlock is a second, read-only target.
func (w *world) readerBlock(id volume.ID) *volume.TargetRequest {
	req := w.targetBlock(id)
	req.Target.Path += "-reader"
	req.Target.ReadOnly = true
	return req
}

// shown is what a target shows, empty when nothing is mounted there.
func (w *world) shown(path string) string {
	if m := w.fake.At(path); m != nil {
		return m.Source
	}
	return ""
}

// attachedTo is the device of a volume, empty when there is none.
func (w *world) attachedTo(id volume.ID, readOnly bool) string {
	w.t.Helper()
	device, err := w.devices.Device(w.ctx, filepath.Join(w.contents(id), diskName), readOnly)
	w.must(err)
	return device
}

// attached lists the devices.
func (w *world) attached() []string {
	var devices []string
	for _, d := range w.fakeLoop.Table() {
		devices = append(devices, d.Path)
	}
	return devices
}

func TestLifeOfABlockVolume(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	v := s.createBlock("pvc-1")
	info, err := os.Stat(filepath.Join(w.contents(v.ID), diskName))
	w.must(err)
	var space unix.Stat_t
	w.must(unix.Stat(filepath.Join(w.contents(v.ID), diskName), &space))
	if info.Size() != gib || v.Capacity != gib || space.Blocks != 0 {
		t.Errorf("file of %d bytes and %d blocks, volume of %d; want %d bytes that take no space", info.Size(), space.Blocks, v.Capacity, gib)
	}
	w.must(s.node.Stage(s.ctx, w.stageBlock(v.ID)), s.node.Publish(s.ctx, w.targetBlock(v.ID)), s.node.Publish(s.ctx, w.readerBlock(v.ID)))
	writable, reader := w.attachedTo(v.ID, false), w.attachedTo(v.ID, true)
	if writable == "" || reader == "" || writable == reader {
		t.Errorf("devices %q and %q, want two: a mount does not make a device read-only", writable, reader)
	}
	if got, gotReader := w.shown(w.target(v.ID)), w.shown(w.readerBlock(v.ID).Target.Path); got != writable || gotReader != reader {
		t.Errorf("targets show %q and %q, want %q and %q", got, gotReader, writable, reader)
	}
	if at := w.shown(w.staging(v.ID)); at != "" {
		t.Errorf("%s is mounted at the staging path", at)
	}
	if all := w.boot().node.All(); len(all) != 1 || len(all[0].Targets) != 2 {
		t.Errorf("after a restart: %+v", all)
	}
	wantErr(t, "unstage too early", s.node.Unstage(s.ctx, v.ID, w.staging(v.ID)), volume.ErrInUse)

	w.must(s.node.Unpublish(s.ctx, v.ID, w.readerBlock(v.ID).Target.Path))
	if diff := cmp.Diff([]string{writable}, w.attached()); diff != "" {
		t.Errorf("devices when the last read-only target is gone (-want +got):\n%s", diff)
	}
	w.must(s.node.Unpublish(s.ctx, v.ID, w.target(v.ID)), s.node.Unstage(s.ctx, v.ID, w.staging(v.ID)), s.volumes.Delete(s.ctx, v.ID))
	if left := append(w.files(), append(w.fake.Targets(), w.attached()...)...); len(left) > 0 || !gone(w.target(v.ID)) {
		t.Errorf("left: %v, target gone: %t", left, gone(w.target(v.ID)))
	}
}

func TestBlockRefusals(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	block, directory := s.createBlock("pvc-1"), s.create("pvc-2")
	wantErr(t, "stage a device as a directory", s.node.Stage(s.ctx, w.stageRequest(block.ID)), volume.ErrInvalid)
	wantErr(t, "stage a directory as a device", s.node.Stage(s.ctx, w.stageBlock(directory.ID)), volume.ErrInvalid)
	wantErr(t, "publish what is not staged", s.node.Publish(s.ctx, w.targetBlock(block.ID)), volume.ErrPrecondition)
	w.must(s.node.Stage(s.ctx, w.stageBlock(block.ID)))
	mounted := w.targetBlock(block.ID)
	mounted.Target.Capability = sharer()
	wantErr(t, "publish a device as a directory", s.node.Publish(s.ctx, mounted), volume.ErrInvalid)
	inline := w.inlineRequest("csi-1", nil)
	inline.Target.Capability = blockWriter()
	wantErr(t, "inline volumes are directories", s.node.Publish(s.ctx, inline), volume.ErrInvalid)
	if _, err := s.volumes.Publish(s.ctx, &volume.PublishRequest{ID: block.ID, Node: testNode, Capability: writer()}); err == nil {
		t.Error("a device was attached as a directory")
	}
}

// TestRebootBringsDevicesBack: devices and mounts are gone, the record and the
// file are there, and the CO repeats its calls.
func TestRebootBringsDevicesBack(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	v := s.createBlock("pvc-1")
	w.must(s.node.Stage(s.ctx, w.stageBlock(v.ID)), s.node.Publish(s.ctx, w.targetBlock(v.ID)))
	w.reboot()
	s = w.boot()
	if all := s.node.All(); len(all) != 0 {
		t.Errorf("the node remembers %+v", all[0])
	}
	wantErr(t, "publish before stage", s.node.Publish(s.ctx, w.targetBlock(v.ID)), volume.ErrPrecondition)
	w.must(s.node.Stage(s.ctx, w.stageBlock(v.ID)), s.node.Publish(s.ctx, w.targetBlock(v.ID)))
	if got, want := w.shown(w.target(v.ID)), w.attachedTo(v.ID, false); got != want || got == "" {
		t.Errorf("the target shows %q, want %q", got, want)
	}
}

// TestLostDeviceIsHealed: somebody detaches the device while it is published.
// The node of the device may belong to another volume by then, so the target
// must not go on showing it.
func TestLostDeviceIsHealed(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	v, other := s.createBlock("pvc-1"), s.createBlock("pvc-2")
	w.must(s.node.Stage(s.ctx, w.stageBlock(v.ID)), s.node.Publish(s.ctx, w.targetBlock(v.ID)))
	lost := w.attachedTo(v.ID, false)
	w.must(w.fakeLoop.Reboot(), s.node.Stage(s.ctx, w.stageBlock(other.ID)))
	known, err := s.node.Lookup(s.ctx, v.ID)
	w.must(err)
	for _, path := range []string{w.staging(v.ID), w.target(v.ID)} {
		if matches, err := s.node.MountMatches(s.ctx, known, path); matches || err != nil {
			t.Errorf("%s matches: %t, %v", path, matches, err)
		}
	}
	w.must(s.node.Stage(s.ctx, w.stageBlock(v.ID)), s.node.Publish(s.ctx, w.targetBlock(v.ID)))
	if got, want := w.shown(w.target(v.ID)), w.attachedTo(v.ID, false); got != want || got == "" {
		t.Errorf("the target shows %q, want %q; lost was %q", got, want, lost)
	}
	for _, path := range []string{w.staging(v.ID), w.target(v.ID)} {
		if matches, err := s.node.MountMatches(s.ctx, known, path); !matches || err != nil {
			t.Errorf("%s matches: %t, %v", path, matches, err)
		}
	}
}

// TestUnpublishRemovesNoFileWithContents: a wrong target path must not cost
// anybody a file.
func TestUnpublishRemovesNoFileWithContents(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	precious, link := filepath.Join(w.pods, "precious"), filepath.Join(w.pods, "link")
	w.writeFile(precious, "content")
	w.must(os.Symlink(precious, link))
	for _, path := range []string{precious, link} {
		wantErr(t, path, s.node.Unpublish(s.ctx, "unknown", path), volume.ErrPrecondition)
		if gone(path) {
			t.Errorf("%s was removed", path)
		}
	}
}

func TestBlankDisksAreCollected(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	blank, written := s.createBlock("pvc-1"), s.createBlock("pvc-2")
	w.must(os.WriteFile(filepath.Join(w.contents(written.ID), diskName), []byte("data"), 0o600))
	for _, v := range []*volume.Volume{blank, written} {
		w.must(os.Remove(filepath.Join(w.stateDir, recordsDir, string(v.ID)+".json")))
	}
	w.boot()
	if diff := cmp.Diff([]string{"volumes/" + string(written.ID)}, w.files()); diff != "" {
		t.Errorf("only what has contents is kept (-want +got):\n%s", diff)
	}
}

func TestStatsOfADevice(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	v := s.createBlock("pvc-1")
	w.must(s.node.Stage(s.ctx, w.stageBlock(v.ID)), s.node.Publish(s.ctx, w.targetBlock(v.ID)))
	file, err := os.OpenFile(filepath.Join(w.contents(v.ID), diskName), os.O_WRONLY, 0)
	w.must(err)
	_, err = file.WriteAt(make([]byte, 1<<20), 1<<20)
	w.must(err, file.Sync(), file.Close())
	stats, err := s.node.Stats(s.ctx, v.ID, w.target(v.ID))
	w.must(err)
	if stats.Inodes != nil || stats.Bytes.Total != gib || stats.Bytes.Used != 1<<20 {
		t.Errorf("stats %+v, want %d bytes of which %d are used, and no inodes", stats, gib, 1<<20)
	}
}

// TestStatsWhereTheKubeletAsks: it passes the path of its own mount of the
// device, which the driver has never heard of.
func TestStatsWhereTheKubeletAsks(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	v, other := s.createBlock("pvc-1"), s.createBlock("pvc-2")
	for _, id := range []volume.ID{v.ID, other.ID} {
		w.must(s.node.Stage(s.ctx, w.stageBlock(id)), s.node.Publish(s.ctx, w.readerBlock(id)))
	}
	link := func(name string, id volume.ID, readOnly bool) string {
		path := filepath.Join(w.pods, name) // a mount shows the same file, as a link does
		w.must(os.Symlink(w.attachedTo(id, readOnly), path))
		return path
	}
	for _, path := range []string{link("writable", v.ID, false), link("read-only", v.ID, true)} {
		stats, err := s.node.Stats(s.ctx, v.ID, path)
		w.must(err)
		if stats.Bytes.Total != gib {
			t.Errorf("%s: %+v", path, stats)
		}
	}
	for _, path := range []string{link("other", other.ID, false), w.pods, filepath.Join(w.pods, "nothing")} {
		_, err := s.node.Stats(s.ctx, v.ID, path)
		wantErr(t, path, err, volume.ErrNotFound)
	}
}

// TestBusyDeviceKeepsTheRecord: as long as somebody has the device open the
// volume counts as staged, and is not deleted.
func TestBusyDeviceKeepsTheRecord(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	v := s.createBlock("pvc-1")
	w.must(s.node.Stage(s.ctx, w.stageBlock(v.ID)))
	release, err := w.fakeLoop.Hold(w.attachedTo(v.ID, false))
	w.must(err)
	ctx, cancel := context.WithTimeout(s.ctx, time.Second)
	defer cancel()
	wantErr(t, "unstage", s.node.Unstage(ctx, v.ID, w.staging(v.ID)), volume.ErrInUse)
	wantErr(t, "delete", s.volumes.Delete(s.ctx, v.ID), volume.ErrInUse)
	w.must(release(), s.node.Unstage(s.ctx, v.ID, w.staging(v.ID)), s.volumes.Delete(s.ctx, v.ID))
	if left := append(w.files(), w.attached()...); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestBlockWithRealDevices(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("devices and mounts need root")
	}
	w := newWorld(t)
	w.mounter, w.devices = mount.Kernel{}, loop.Kernel{}
	s := w.boot()
	v := s.createBlock("pvc-1")
	reader := w.readerBlock(v.ID)
	disk := filepath.Join(w.contents(v.ID), diskName)
	t.Cleanup(func() { // only when the test has failed
		for _, path := range []string{w.target(v.ID), reader.Target.Path} {
			unix.Unmount(path, unix.MNT_DETACH)
		}
		for _, readOnly := range []bool{true, false} {
			w.devices.Detach(w.ctx, disk, readOnly)
		}
	})
	w.must(s.node.Stage(s.ctx, w.stageBlock(v.ID)), s.node.Publish(s.ctx, w.targetBlock(v.ID)), s.node.Publish(s.ctx, reader))
	device, err := os.OpenFile(w.target(v.ID), os.O_RDWR, 0)
	w.must(err)
	_, err = device.WriteAt([]byte("hello"), gib-volume.BlockSize)
	w.must(err, device.Sync(), device.Close())
	content := make([]byte, 5)
	file, err := os.Open(disk)
	w.must(err)
	_, err = file.ReadAt(content, gib-volume.BlockSize)
	w.must(err, file.Close())
	if string(content) != "hello" {
		t.Errorf("the file has %q where the device has hello", content)
	}
	if err := os.WriteFile(reader.Target.Path, []byte("overwritten"), 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("write to the read-only target: %v, want EPERM", err)
	}
	_, err = s.expand(v.ID, 2*gib)
	w.must(err)
	_, err = s.expandOnNode(v.ID, w.target(v.ID), 2*gib)
	w.must(err)
	for _, path := range []string{w.target(v.ID), reader.Target.Path} {
		device, err := os.Open(path)
		w.must(err)
		if size, err := device.Seek(0, io.SeekEnd); size != 2*gib || err != nil {
			t.Errorf("%s has %d bytes after the expansion, %v; want %d", path, size, err, 2*gib)
		}
		w.must(device.Close())
	}
	s = w.boot()
	w.must(s.node.Unpublish(s.ctx, v.ID, w.target(v.ID)), s.node.Unpublish(s.ctx, v.ID, reader.Target.Path),
		s.node.Unstage(s.ctx, v.ID, w.staging(v.ID)))
	for _, readOnly := range []bool{true, false} {
		if left, err := w.devices.Device(s.ctx, disk, readOnly); left != "" || err != nil {
			t.Errorf("device left: %q, %v", left, err)
		}
	}
	w.must(s.volumes.Delete(s.ctx, v.ID))
	if left := w.files(); len(left) > 0 {
		t.Errorf("left on disk: %v", left)
	}
}

// TestAttachedReadOnly: what was attached read-only cannot be written to by any
// pod of the node, whatever the pod asks for.
func TestAttachedReadOnly(t *testing.T) {
	w := newWorld(t)
	w.attach = true
	s := w.boot()
	directory, device := s.create("pvc-1"), s.createBlock("pvc-2")
	for id, capability := range map[volume.ID]volume.Capability{directory.ID: sharer(), device.ID: blockSharer()} {
		_, err := s.volumes.Publish(s.ctx, &volume.PublishRequest{ID: id, Node: testNode, ReadOnly: true, Capability: capability})
		w.must(err)
	}
	w.must(s.node.Stage(s.ctx, w.stageRequest(directory.ID)), s.node.Publish(s.ctx, w.targetRequest(directory.ID)),
		s.node.Stage(s.ctx, w.stageBlock(device.ID)), s.node.Publish(s.ctx, w.targetBlock(device.ID)))
	for _, path := range []string{w.staging(directory.ID), w.target(directory.ID)} {
		if m := w.fake.At(path); m == nil || !m.Options.ReadOnly {
			t.Errorf("%s: %+v, want it read-only", path, m)
		}
	}
	if table := w.fakeLoop.Table(); len(table) != 1 || !table[0].ReadOnly || w.shown(w.target(device.ID)) != table[0].Path {
		t.Errorf("devices %+v, the target shows %q; want one device, read-only", table, w.shown(w.target(device.ID)))
	}
	s = w.boot()
	for id, paths := range map[volume.ID][]string{directory.ID: {w.staging(directory.ID), w.target(directory.ID)}, device.ID: {w.staging(device.ID), w.target(device.ID)}} {
		known, err := s.node.Lookup(s.ctx, id)
		w.must(err)
		for _, path := range paths {
			if matches, err := s.node.MountMatches(s.ctx, known, path); !matches || err != nil {
				t.Errorf("%s matches: %t, %v", path, matches, err)
			}
		}
		w.must(s.node.Unpublish(s.ctx, id, paths[1]), s.node.Unstage(s.ctx, id, paths[0]))
	}
	if left := append(w.fake.Targets(), w.attached()...); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
