package backend

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/loop"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/needs"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

func imageCapability(fsType string) volume.Capability {
	return volume.Capability{Access: volume.AccessMount, Mode: volume.SingleNodeMultiWriter, FSType: fsType}
}

func imageRequest(name, fsType string) *volume.CreateRequest {
	return &volume.CreateRequest{
		Name: name, Range: volume.Range{Required: gib}, Capabilities: []volume.Capability{imageCapability(fsType)},
		Parameters: map[string]string{"mode": "2770", "uid": "7", "gid": "8"},
	}
}

func (s *system) createImage(name, fsType string) *volume.Volume {
	s.t.Helper()
	v, err := s.volumes.Create(s.ctx, imageRequest(name, fsType))
	if err != nil {
		s.t.Fatalf("create %s: %v", name, err)
	}
	return v
}

func (w *world) stageImage(id volume.ID, fsType string) *volume.StageRequest {
	return &volume.StageRequest{ID: id, Stage: volume.Stage{Path: w.staging(id), Capability: imageCapability(fsType)}}
}

func (w *world) targetImage(id volume.ID) *volume.TargetRequest {
	return &volume.TargetRequest{ID: id, Target: volume.Target{Path: w.target(id), Source: w.staging(id), Capability: imageCapability("")}}
}

// made counts how often a file system was made.
func (w *world) made() int {
	made := 0
	for _, call := range w.fakeFS.Calls() {
		if strings.HasPrefix(call, string(filesystem.StepFormat)) {
			made++
		}
	}
	return made
}

func TestLifeOfAnImage(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	v := s.createImage("pvc-1", "")
	if v.FSType != "" {
		t.Errorf("nobody asked for a file system, the volume has %q", v.FSType)
	}
	w.must(s.volumes.Delete(s.ctx, v.ID))
	v = s.createImage("pvc-1", "xfs")
	if v.FSType != "xfs" || !v.ExpandOnNode() || s.diskSize(v.ID) != gib {
		t.Errorf("%+v with a file of %d bytes", v, s.diskSize(v.ID))
	}
	w.must(s.node.Stage(s.ctx, w.stageImage(v.ID, "xfs")), s.node.Publish(s.ctx, w.targetImage(v.ID)))
	device := w.attachedTo(v.ID, false)
	if device == "" || w.shown(w.staging(v.ID)) != device || w.shown(w.target(v.ID)) != w.staging(v.ID) {
		t.Errorf("device %q, staged %q, published %q", device, w.shown(w.staging(v.ID)), w.shown(w.target(v.ID)))
	}
	info, err := os.Stat(w.staging(v.ID))
	w.must(err)
	owner := info.Sys().(*syscall.Stat_t) //nolint:forcetypeassert // it is Linux
	if info.Mode() != fs.ModeDir|fs.ModeSetgid|0o770 || owner.Uid != 7 || owner.Gid != 8 {
		t.Errorf("root directory has mode %v, uid %d and gid %d", info.Mode(), owner.Uid, owner.Gid)
	}
	stats, err := s.node.Stats(s.ctx, v.ID, w.target(v.ID))
	w.must(err)
	if stats.Bytes.Total != gib || stats.Inodes == nil || stats.Inodes.Total == 0 {
		t.Errorf("stats %+v", stats)
	}
	_, err = s.expand(v.ID, 2*gib)
	w.must(err)
	_, err = s.expandOnNode(v.ID, w.staging(v.ID), 2*gib)
	w.must(err)
	if stats, err = s.node.Stats(s.ctx, v.ID, w.target(v.ID)); err != nil || stats.Bytes.Total != 2*gib {
		t.Errorf("after the expansion: %+v, %v", stats, err)
	}

	w.reboot()
	s = w.boot()
	w.must(s.node.Stage(s.ctx, w.stageImage(v.ID, "")), s.node.Publish(s.ctx, w.targetImage(v.ID)))
	if w.made() != 1 {
		t.Errorf("the file system was made %d times", w.made())
	}
	wantErr(t, "delete while in use", s.volumes.Delete(s.ctx, v.ID), volume.ErrInUse)
	w.must(s.node.Unpublish(s.ctx, v.ID, w.target(v.ID)), s.node.Unstage(s.ctx, v.ID, w.staging(v.ID)), s.volumes.Delete(s.ctx, v.ID))
	if left := slices.Concat(w.files(), w.fake.Targets(), w.attached()); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestChoiceOfTheForm: what a StorageClass says decides what a volume is.
func TestChoiceOfTheForm(t *testing.T) {
	directory, device, image := volume.Form{}, volume.Form{Disk: true}, func(fsType string) volume.Form { return volume.Form{Disk: true, FSType: fsType} }
	mounted := func(fsType string) []volume.Capability { return []volume.Capability{imageCapability(fsType)} }
	block := []volume.Capability{blockWriter()}
	cases := map[string]struct {
		reason  string
		backend string
		list    []volume.Capability
		want    volume.Form
		err     error
	}{
		"Default":        {reason: "a directory", list: mounted(""), want: directory},
		"Directory":      {reason: "as asked for", backend: "directory", list: mounted(""), want: directory},
		"Image":          {reason: "with the default file system", backend: "image", list: mounted(""), want: image("ext4")},
		"Type":           {reason: "a file system needs an image", list: mounted("ext3"), want: image("ext3")},
		"TypeAndImage":   {reason: "both say the same", backend: "image", list: mounted("xfs"), want: image("xfs")},
		"Block":          {reason: "a device", list: block, want: device},
		"BlockAndImage":  {reason: "an image is a device, too", backend: "image", list: block, want: device},
		"TypeDirectory":  {reason: "a directory has no file system of its own", backend: "directory", list: mounted("ext4"), err: volume.ErrInvalid},
		"BlockDirectory": {reason: "a directory is no device", backend: "directory", list: block, err: volume.ErrInvalid},
		"UnknownType":    {reason: "nobody makes that", list: mounted("zfs"), err: volume.ErrInvalid},
		"TwoTypes":       {reason: "a volume has one", list: append(mounted("ext4"), mounted("xfs")...), err: volume.ErrInvalid},
		"UnknownBackend": {reason: "a typing error", backend: "imgae", list: mounted(""), err: volume.ErrInvalid},
		"ManyWriters": {
			reason: "two kernels would destroy it", backend: "image", err: volume.ErrInvalid,
			list: []volume.Capability{{Access: volume.AccessMount, Mode: volume.MultiNodeMultiWriter}},
		},
		"FlagOfTheFileSystem": {
			reason: "an image has more flags than a directory", backend: "image", want: image("ext4"),
			list: []volume.Capability{{Access: volume.AccessMount, Mode: volume.SingleNodeWriter, MountFlags: []string{"data=journal"}}},
		},
		"FlagThatLeadsElsewhere": {
			reason: "offset is another device", backend: "image", err: volume.ErrInvalid,
			list: []volume.Capability{{Access: volume.AccessMount, Mode: volume.SingleNodeWriter, MountFlags: []string{"offset=4096"}}},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := newWorld(t).boot()
			req := &volume.CreateRequest{Name: "pvc-1", Range: volume.Range{Required: gib}, Capabilities: c.list}
			if c.backend != "" {
				req.Parameters = map[string]string{"backend": c.backend}
			}
			made, err := s.volumes.Create(s.ctx, req)
			wantErr(t, c.reason, err, c.err)
			if c.err == nil && (err != nil || made.Form() != c.want) {
				t.Errorf("%s: %v, %v, want %v", c.reason, made, err, c.want)
			}
			if left := s.files(); c.err != nil && len(left) > 0 {
				t.Errorf("%s: left after the refusal: %v", c.reason, left)
			}
		})
	}
}

// TestImageHasALeastSize: mkfs.xfs refuses what is smaller.
func TestImageHasALeastSize(t *testing.T) {
	s := newWorld(t).boot()
	req := imageRequest("pvc-1", "xfs")
	req.Range = volume.Range{Required: 1 << 20}
	v, err := s.volumes.Create(s.ctx, req)
	if err != nil || v.Capacity != filesystem.MinSize("xfs") || s.diskSize(v.ID) != v.Capacity {
		t.Errorf("1 MiB of xfs: %+v, %v", v, err)
	}
	req.Name, req.Range.Limit = "pvc-2", 2<<20
	_, err = s.volumes.Create(s.ctx, req)
	wantErr(t, "a limit below the least size", err, volume.ErrOutOfRange)
}

// TestHalfMadeFileSystem: whatever an interrupted attempt left on the device,
// the next one begins with a blank device; once handed out, nothing is ever
// made again.
func TestHalfMadeFileSystem(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	v := s.createImage("pvc-1", "ext4")
	disk := filepath.Join(w.contents(v.ID), diskName)
	file, err := os.OpenFile(disk, os.O_WRONLY, 0)
	w.must(err)
	_, err = file.WriteAt([]byte("half of a file system"), 4096)
	w.must(err, file.Close())
	w.fakeFS.Fail(filesystem.StepFormat, errTest)
	wantErr(t, "mkfs fails", s.node.Stage(s.ctx, w.stageImage(v.ID, "ext4")), errTest)
	if left := slices.Concat(w.fake.Targets(), w.attached()); len(left) > 0 {
		t.Errorf("left after the failure: %v", left)
	}
	w.fakeFS.Fail(filesystem.StepFormat, nil)
	w.must(s.node.Stage(s.ctx, w.stageImage(v.ID, "ext4")), s.node.Unstage(s.ctx, v.ID, w.staging(v.ID)))
	made := w.made()
	w.must(os.Truncate(disk, 0), os.Truncate(disk, gib))
	w.fakeFS.Fail(filesystem.StepFormat, errTest)
	if err := s.node.Stage(s.ctx, w.stageImage(v.ID, "ext4")); err == nil {
		t.Errorf("a volume that has lost its file system was staged, %d file systems made before, %d after", made, w.made())
	}
}

// TestUnfinishedFileSystem: one that was mounted to be made ready when the
// driver died is not staged: what is written to it would be wiped later.
func TestUnfinishedFileSystem(t *testing.T) {
	for _, step := range []string{"format:attributes", "format:unmount", "format:done"} {
		w := newWorld(t)
		w.step = func(name string) {
			if name == step {
				panic(crash{})
			}
		}
		s := w.boot()
		v := s.createImage("pvc-1", "ext4")
		req := w.stageImage(v.ID, "ext4")
		if err := survive(func() error { return s.node.Stage(s.ctx, req) }); !errors.Is(err, errCrashed) {
			t.Fatalf("no crash at %s: %v", step, err)
		}
		w.step = nil
		s = w.boot()
		if known, err := s.node.Lookup(s.ctx, v.ID); !errors.Is(err, volume.ErrNotFound) {
			t.Errorf("crash at %s: after it the node knows %+v, %v", step, known, err)
		}
		if left := slices.Concat(w.fake.Targets(), w.attached()); len(left) > 0 {
			t.Errorf("crash at %s: left mounted or attached: %v", step, left)
		}
		w.must(s.node.Stage(s.ctx, req))
		if blank, err := s.node.persistentContents("").Unformatted(v.ID); blank || err != nil {
			t.Errorf("crash at %s: what is staged would be wiped by the next call: %t, %v", step, blank, err)
		}
	}
}

// TestUnfinishedInlineFileSystem: the same for one that has no staging path.
func TestUnfinishedInlineFileSystem(t *testing.T) {
	w := newWorld(t)
	w.step = func(name string) {
		if name == "format:attributes" {
			panic(crash{})
		}
	}
	s := w.boot()
	req := w.inlineRequest("csi-1", nil)
	req.Target.Capability.FSType = "ext4"
	if err := survive(func() error { return s.node.Publish(s.ctx, req) }); !errors.Is(err, errCrashed) {
		t.Fatalf("no crash: %v", err)
	}
	w.step = nil
	s = w.boot()
	known, err := s.node.Lookup(s.ctx, "csi-1")
	w.must(err)
	if matches, err := s.node.MountMatches(s.ctx, known, w.target("csi-1")); matches || err != nil {
		t.Errorf("matches: %t, %v; the volume does not have its attributes yet", matches, err)
	}
}

// TestStartWithBusyDevices: a device that somebody has open although nothing
// shows it any more does not keep the driver from starting.
func TestStartWithBusyDevices(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	v := s.createImage("pvc-1", "ext4")
	inline := w.inlineRequest("csi-1", nil)
	inline.Target.Capability.FSType = "ext4"
	w.must(s.node.Stage(s.ctx, w.stageImage(v.ID, "ext4")), s.node.Publish(s.ctx, inline))
	for _, device := range w.attached() {
		_, err := w.fakeLoop.Hold(device)
		w.must(err)
	}
	w.must(w.fake.Unmount(w.ctx, w.staging(v.ID)), w.fake.Unmount(w.ctx, w.target("csi-1")), os.Remove(w.target("csi-1")))
	synctest.Test(t, func(t *testing.T) {
		w.t, w.ctx = t, klog.NewContext(t.Context(), klog.Logger{})
		s = w.boot()
	})
	if known := s.node.All(); len(known) != 1 || known[0].ID != "csi-1" {
		t.Errorf("the node knows %v, want the inline volume, which is still in use", known)
	}
}

// TestHalfMadeContents: a machine that went down while the contents of an image
// were made has left any of the two files, or both.
func TestHalfMadeContents(t *testing.T) {
	for name, left := range map[string][]string{"Nothing": {}, "Marker": {unformattedName}, "Both": {unformattedName, diskName}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s := w.boot()
			w.must(s.node.homes.contents("", volumesDir).Begin("csi-1", volume.Form{Disk: true}, 0))
			for _, file := range left {
				w.must(s.node.homes.contents("", volumesDir).touch("csi-1", file, 0))
			}
			w.must(s.node.homes.contents("", volumesDir).Create("csi-1", volume.Form{Disk: true, FSType: "ext4"}, gib, volume.Attributes{}))
			info, err := os.Stat(s.node.homes.contents("", volumesDir).Disk("csi-1"))
			if err != nil || info.Size() != gib {
				t.Errorf("disk %v, %v", info, err)
			}
			if blank, err := s.node.homes.contents("", volumesDir).Unformatted("csi-1"); err != nil || !blank {
				t.Errorf("unformatted %t, %v", blank, err)
			}
		})
	}
}

// TestOccupiedStagingPath: what somebody else has mounted stays, whether or not
// the image is still to be formatted.
func TestOccupiedStagingPath(t *testing.T) {
	for name, formatted := range map[string]bool{"New": false, "Formatted": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s := w.boot()
			v := s.createImage("pvc-1", "ext4")
			if formatted {
				w.must(s.node.Stage(s.ctx, w.stageImage(v.ID, "ext4")), s.node.Unstage(s.ctx, v.ID, w.staging(v.ID)))
			}
			other := t.TempDir()
			w.must(os.MkdirAll(w.staging(v.ID), 0o750), w.mounter.Bind(s.ctx, other, w.staging(v.ID), mountNothing()))
			wantErr(t, "stage where something is mounted", s.node.Stage(s.ctx, w.stageImage(v.ID, "ext4")), volume.ErrPrecondition)
			if w.shown(w.staging(v.ID)) != other || len(w.attached()) > 0 {
				t.Errorf("mounted %q, devices %v", w.shown(w.staging(v.ID)), w.attached())
			}
		})
	}
}

// TestReadOnlyImage: the first use of an image may be one that must not write.
func TestReadOnlyImage(t *testing.T) {
	w := newWorld(t)
	w.attach = true
	s := w.boot()
	v := s.createImage("pvc-1", "ext4")
	_, err := s.volumes.Publish(s.ctx, &volume.PublishRequest{ID: v.ID, Node: testNode, ReadOnly: true, Capability: imageCapability("ext4")})
	w.must(err, s.node.Stage(s.ctx, w.stageImage(v.ID, "ext4")), s.node.Publish(s.ctx, w.targetImage(v.ID)))
	if table := w.fakeLoop.Table(); len(table) != 1 || !table[0].ReadOnly {
		t.Errorf("devices %+v, want one that refuses writes", table)
	}
	if m := w.fake.At(w.target(v.ID)); m == nil || !m.Options.ReadOnly {
		t.Errorf("target %+v, want it read-only", m)
	}
	w.must(s.node.Unpublish(s.ctx, v.ID, w.target(v.ID)), s.node.Unstage(s.ctx, v.ID, w.staging(v.ID)))
	if left := slices.Concat(w.fake.Targets(), w.attached()); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestImageWithoutPrograms: the node says what is missing.
func TestImageWithoutPrograms(t *testing.T) {
	w := newWorld(t)
	w.systems = typeless{w.systems}
	s := w.boot()
	v := s.createImage("pvc-1", "xfs")
	wantErr(t, "no mkfs.xfs", s.node.Stage(s.ctx, w.stageImage(v.ID, "xfs")), volume.ErrPrecondition)
	inline := w.inlineRequest("csi-1", nil)
	inline.Target.Capability.FSType = "xfs"
	wantErr(t, "no mkfs.xfs for an inline volume", s.node.Publish(s.ctx, inline), volume.ErrPrecondition)
}

// typeless is a machine without programs.
type typeless struct{ filesystem.Filesystems }

func (typeless) Types() []string { return nil }

func TestLifeOfAnInlineImage(t *testing.T) {
	w := newWorld(t)
	w.limits = map[string]int64{"fast": gib}
	s := w.boot()
	req := w.inlineRequest("csi-1", map[string]string{"size": "512Mi", "mode": "0700"})
	req.Target.Capability.FSType = "ext4"
	for range 2 {
		w.must(s.node.Publish(s.ctx, req))
	}
	known, err := s.node.Lookup(s.ctx, "csi-1")
	w.must(err)
	if matches, err := s.node.MountMatches(s.ctx, known, w.target("csi-1")); !matches || err != nil {
		t.Errorf("matches: %t, %v", matches, err)
	}
	stats, err := s.node.Stats(s.ctx, "csi-1", w.target("csi-1"))
	if err != nil || stats.Bytes.Total != 512<<20 {
		t.Errorf("stats %+v, %v", stats, err)
	}
	w.reboot()
	s = w.boot()
	w.must(s.node.Publish(s.ctx, req))
	if w.made() != 1 {
		t.Errorf("the file system was made %d times", w.made())
	}
	for range 2 {
		w.must(s.node.Unpublish(s.ctx, "csi-1", w.target("csi-1")))
	}
	if left := slices.Concat(w.files(), w.fake.Targets(), w.attached()); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if c, err := s.pools.Capacity("fast"); err != nil || c.Available != gib {
		t.Errorf("left in the pool: %+v, %v", c, err)
	}
}

// TestImagesOfTheKernel is the life of one image of each type with real
// devices, real file systems and real mounts, over a restart of the driver.
func TestImagesOfTheKernel(t *testing.T) {
	needs.Time(t)
	if os.Geteuid() != 0 {
		t.Skip("devices and mounts need root")
	}
	systems := filesystem.NewKernel()
	for _, fsType := range support().FSTypes {
		t.Run(fsType, func(t *testing.T) {
			needType(t, systems, fsType)
			w := newWorld(t)
			w.mounter, w.devices, w.systems = mount.Kernel{}, loop.Kernel{}, systems
			s := w.boot()
			req := imageRequest("pvc-1", fsType)
			req.Range.Required = 64 << 20
			v, err := s.volumes.Create(s.ctx, req)
			w.must(err)
			t.Cleanup(func() { // only when the test has failed
				for _, path := range []string{w.target(v.ID), w.staging(v.ID)} {
					unix.Unmount(path, unix.MNT_DETACH)
				}
				w.devices.Detach(w.ctx, filepath.Join(w.contents(v.ID), diskName), false)
			})
			w.must(s.node.Stage(s.ctx, w.stageImage(v.ID, fsType)), s.node.Publish(s.ctx, w.targetImage(v.ID)))
			w.writeFile(filepath.Join(w.target(v.ID), "file"), "hello")
			info, err := os.Stat(w.target(v.ID))
			w.must(err)
			if info.Mode() != fs.ModeDir|fs.ModeSetgid|0o770 {
				t.Errorf("root directory has mode %v", info.Mode())
			}
			stats, err := s.node.Stats(s.ctx, v.ID, w.target(v.ID))
			if err != nil || stats.Bytes.Total < v.Capacity/2 || stats.Bytes.Total > v.Capacity {
				t.Errorf("stats %+v, %v", stats, err)
			}
			if err := fill(filepath.Join(w.target(v.ID), "large")); !errors.Is(err, unix.ENOSPC) {
				t.Errorf("fill it: %v, want ENOSPC", err)
			}
			w.must(os.Remove(filepath.Join(w.target(v.ID), "large")))

			s = w.boot()
			w.must(s.node.Unpublish(s.ctx, v.ID, w.target(v.ID)), s.node.Unstage(s.ctx, v.ID, w.staging(v.ID)),
				s.node.Stage(s.ctx, w.stageImage(v.ID, "")), s.node.Publish(s.ctx, w.targetImage(v.ID)))
			if got, err := os.ReadFile(filepath.Join(w.target(v.ID), "file")); err != nil || string(got) != "hello" {
				t.Errorf("read after staging again: %q, %v", got, err)
			}
			w.must(s.node.Unpublish(s.ctx, v.ID, w.target(v.ID)), s.node.Unstage(s.ctx, v.ID, w.staging(v.ID)))

			larger := s.restore(from("larger", volume.Source{Volume: v.ID}, func(r *volume.CreateRequest) { r.Range.Required = 2 * v.Capacity }))
			w.must(s.node.Stage(s.ctx, w.stageImage(larger.ID, fsType)))
			w.wantFile(filepath.Join(w.staging(larger.ID), "file"), "hello")
			if grown, err := s.node.Stats(s.ctx, larger.ID, w.staging(larger.ID)); err != nil || grown.Bytes.Total < stats.Bytes.Total+v.Capacity*8/10 {
				t.Errorf("a larger clone has %+v, %v, its source %+v", grown, err, stats)
			}
			w.must(s.node.Unstage(s.ctx, larger.ID, w.staging(larger.ID)), s.volumes.Delete(s.ctx, larger.ID), s.volumes.Delete(s.ctx, v.ID))
			if left := w.files(); len(left) > 0 {
				t.Errorf("left on disk: %v", left)
			}
		})
	}
}

// fill writes a file until the volume is full.
func fill(path string) error {
	file, err := os.Create(path)
	for err == nil {
		_, err = file.Write(make([]byte, 1<<20))
	}
	return errors.Join(err, file.Close())
}
