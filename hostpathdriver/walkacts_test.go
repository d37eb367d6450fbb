package hostpathdriver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/loop"
)

// act is what a CO or a workload does next.
type act struct {
	// name is that of the call, on that of the volume.
	name, on string
	call     func(ctx context.Context, w *walker) error
	// undoes says that a CO does it also when it has given up before.
	undoes bool
	// remakes says that a CO does it again after the machine was down, unless
	// the call was made since that has its name in ends.
	remakes bool
	ends    string
}

// disk is a volume in the eyes of a CO.
type disk struct {
	name   string
	fsType string // of an image
	block  bool
	size   int64
	from   func(w *walker) *csi.VolumeContentSource
}

// mib is the unit of sizes here.
const mib = 1 << 20

func (d disk) capability() *csi.VolumeCapability {
	c := mountCapability()
	if d.block {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	} else {
		c.GetMount().FsType = d.fsType
	}
	return c
}

func (d disk) parameters() map[string]string {
	if d.fsType == "" {
		return nil
	}
	return map[string]string{"backend": "image"}
}

func (d disk) staging(w *walker) string { return w.path(d.name + "-staging") }
func (d disk) target(w *walker) string  { return w.path(d.name + "-target") }

func (d disk) create() act {
	return act{name: "CreateVolume", call: func(ctx context.Context, w *walker) error {
		req := &csi.CreateVolumeRequest{
			Name: d.name, VolumeCapabilities: []*csi.VolumeCapability{d.capability()}, Parameters: d.parameters(),
			CapacityRange: &csi.CapacityRange{RequiredBytes: d.size},
		}
		if d.from != nil {
			req.VolumeContentSource = d.from(w)
		}
		made, err := w.CreateVolume(ctx, req)
		return w.learn(d.name, made.GetVolume().GetVolumeId(), err)
	}}
}

// learn notes the id that a call has answered, which never changes.
func (w *walker) learn(name, id string, err error) error {
	if err == nil && w.ids[name] != "" && w.ids[name] != id {
		err = fmt.Errorf("%s was %s, and is %s", name, w.ids[name], id)
	}
	if err == nil {
		w.ids[name] = id
	}
	return err
}

// using is an act on the volume of that name, if it was made.
func using(name, rpc string, call func(ctx context.Context, w *walker, id string) error) act {
	return act{name: rpc, on: name, call: func(ctx context.Context, w *walker) error {
		if id := w.ids[name]; id != "" {
			return call(ctx, w, id)
		}
		return nil
	}}
}

func (a act) undoing() act           { a.undoes = true; return a }
func (a act) remaking() act          { a.remakes = true; return a }
func (a act) ending(name string) act { a.ends = name; return a }
func second(_ any, err error) error  { return err }

func (d disk) attach() act {
	return using(d.name, "ControllerPublishVolume", func(ctx context.Context, w *walker, id string) error {
		return second(w.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: id, NodeId: "n1", VolumeCapability: d.capability()}))
	})
}

func (d disk) detach() act {
	return using(d.name, "ControllerUnpublishVolume", func(ctx context.Context, w *walker, id string) error {
		return second(w.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: "n1"}))
	}).undoing()
}

func (d disk) stage() act {
	return using(d.name, "NodeStageVolume", func(ctx context.Context, w *walker, id string) error {
		return second(w.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: d.staging(w), VolumeCapability: d.capability()}))
	}).remaking()
}

func (d disk) publish() act {
	return using(d.name, "NodePublishVolume", func(ctx context.Context, w *walker, id string) error {
		return second(w.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
			VolumeId: id, StagingTargetPath: d.staging(w), TargetPath: d.target(w), VolumeCapability: d.capability(),
		}))
	}).remaking()
}

func (d disk) unpublish() act {
	return using(d.name, "NodeUnpublishVolume", func(ctx context.Context, w *walker, id string) error {
		return second(w.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: d.target(w)}))
	}).undoing().ending("NodePublishVolume")
}

func (d disk) unstage() act {
	return using(d.name, "NodeUnstageVolume", func(ctx context.Context, w *walker, id string) error {
		return second(w.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: d.staging(w)}))
	}).undoing().ending("NodeStageVolume")
}

func (d disk) remove() act {
	return using(d.name, "DeleteVolume", func(ctx context.Context, w *walker, id string) error {
		return second(w.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id}))
	}).undoing()
}

// inlinePrefix begins the ids of inline volumes.
const inlinePrefix = "csi-"

// inline publishes an inline volume, which a kubelet knows the id of.
func (d disk) inline() act {
	return act{name: "NodePublishVolume", on: d.name, remakes: true, call: func(ctx context.Context, w *walker) error {
		w.ids[d.name] = inlinePrefix + d.name
		attributes := map[string]string{"csi.storage.k8s.io/ephemeral": "true", "size": fmt.Sprint(d.size)}
		return second(w.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
			VolumeId: w.ids[d.name], TargetPath: d.target(w), VolumeCapability: d.capability(), VolumeContext: attributes,
		}))
	}}
}

// expand is both halves of an expansion.
func (d disk) expand(size int64) []act {
	return []act{d.expandOnController(size), d.expandOnNode(size)}
}

func (d disk) expandOnController(size int64) act {
	return using(d.name, "ControllerExpandVolume", func(ctx context.Context, w *walker, id string) error {
		answer, err := w.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
			VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeCapability: d.capability(),
		})
		if err == nil && answer.GetCapacityBytes() != size {
			err = fmt.Errorf("expanded to %d bytes, want %d", answer.GetCapacityBytes(), size)
		}
		return err
	})
}

func (d disk) expandOnNode(size int64) act {
	return using(d.name, "NodeExpandVolume", func(ctx context.Context, w *walker, id string) error {
		answer, err := w.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
			VolumeId: id, VolumePath: d.target(w), StagingTargetPath: d.staging(w),
			CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeCapability: d.capability(),
		})
		if err == nil && answer.GetCapacityBytes() != size {
			err = fmt.Errorf("expanded to %d bytes on the node, want %d", answer.GetCapacityBytes(), size)
		}
		return err
	})
}

func (d disk) modify(name, value string) act {
	return using(d.name, "ControllerModifyVolume", func(ctx context.Context, w *walker, id string) error {
		return second(w.ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{VolumeId: id, MutableParameters: map[string]string{name: value}}))
	})
}

// readAhead reports whether the device of a staged volume has a read-ahead in KiB.
// Fakes die with their process.
func (d disk) readAhead(want string) act {
	return using(d.name, "read-ahead", func(ctx context.Context, w *walker, id string) error {
		if !kernel() {
			return nil
		}
		device, err := loop.Kernel{}.Device(ctx, filepath.Join(w.contents(id), "disk"), false)
		if err != nil || device == "" {
			return fmt.Errorf("device %q: %w", device, err)
		}
		got, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(device), "queue/read_ahead_kb"))
		if err == nil && strings.TrimSpace(string(got)) != want {
			err = fmt.Errorf("%s has a read-ahead of %q KiB, want %q", device, got, want)
		}
		return err
	})
}

// snapshot takes one of that name.
func (d disk) snapshot(name string) act {
	return using(d.name, "CreateSnapshot", func(ctx context.Context, w *walker, id string) error {
		taken, err := w.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: id})
		if err == nil && !taken.GetSnapshot().GetReadyToUse() {
			err = errors.New("the snapshot is not ready")
		}
		return w.learn(name, taken.GetSnapshot().GetSnapshotId(), err)
	})
}

func removeSnapshot(name string) act {
	return using(name, "DeleteSnapshot", func(ctx context.Context, w *walker, id string) error {
		return second(w.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: id}))
	}).undoing()
}

// memberOf is the name of the snapshot of a volume in a group.
func memberOf(group string, d disk) string { return group + " of " + d.name }

// group takes snapshots of two volumes at one moment.
func group(name string, disks ...disk) act {
	return act{name: "CreateVolumeGroupSnapshot", call: func(ctx context.Context, w *walker) error {
		req := &csi.CreateVolumeGroupSnapshotRequest{Name: name}
		for _, d := range disks {
			req.SourceVolumeIds = append(req.SourceVolumeIds, w.ids[d.name])
		}
		taken, err := w.CreateVolumeGroupSnapshot(ctx, req)
		if err != nil {
			return err
		}
		made := taken.GetGroupSnapshot()
		if !made.GetReadyToUse() || len(made.GetSnapshots()) != len(disks) {
			return fmt.Errorf("the group is not whole: %v", made)
		}
		for _, member := range made.GetSnapshots() {
			for _, d := range disks {
				if w.ids[d.name] == member.GetSourceVolumeId() {
					w.ids[memberOf(name, d)] = member.GetSnapshotId()
				}
			}
		}
		return w.learn(name, made.GetGroupSnapshotId(), nil)
	}}
}

func removeGroup(name string, disks ...disk) act {
	return using(name, "DeleteVolumeGroupSnapshot", func(ctx context.Context, w *walker, id string) error {
		req := &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: id}
		for _, d := range disks {
			req.SnapshotIds = append(req.SnapshotIds, w.ids[memberOf(name, d)])
		}
		return second(w.DeleteVolumeGroupSnapshot(ctx, req))
	}).undoing()
}

func fromVolume(name string) func(w *walker) *csi.VolumeContentSource {
	return func(w *walker) *csi.VolumeContentSource {
		return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: w.ids[name]}}}
	}
}

func fromSnapshot(name string) func(w *walker) *csi.VolumeContentSource {
	return func(w *walker) *csi.VolumeContentSource {
		return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: w.ids[name]}}}
	}
}

// place is where a workload writes: at the target if the volume is published,
// else, and with fakes, in the contents. Fakes of file systems take no files.
func (d disk) place(w *walker) string {
	if d.fsType != "" && !kernel() {
		return ""
	}
	shown, file := d.target(w), "/file"
	if !w.mounted(shown) {
		shown = w.contents(w.ids[d.name])
		if d.block {
			file = "/disk"
		}
	} else if d.block {
		file = ""
	}
	return shown + file
}

// contents is where a volume is kept.
func (w *walker) contents(id string) string {
	w.t.Helper()
	var found []string
	for _, root := range []string{"state", "state/nodes/n1", "pool", "pool/nodes/n1"} {
		found = append(found, w.glob(root+"/volumes/"+id)...)
	}
	if len(found) != 1 {
		w.t.Fatalf("contents of %s: %v", id, found)
	}
	return found[0]
}

// open calls back with the file that a workload uses. No process that is
// started meanwhile has it open, too: nobody could unmount it.
func (d disk) open(rpc string, flags int, use func(w *walker, file *os.File) error) act {
	return act{name: rpc, call: func(_ context.Context, w *walker) error {
		path := d.place(w)
		if path == "" {
			return nil
		}
		syscall.ForkLock.RLock()
		defer syscall.ForkLock.RUnlock()
		file, err := os.OpenFile(path, flags, 0o600)
		if err != nil {
			return err
		}
		return errors.Join(use(w, file), file.Close())
	}}
}

// write makes a text durable that has the length of any other here.
func (d disk) write(text string) act {
	return d.open("write", os.O_WRONLY|os.O_CREATE, func(_ *walker, file *os.File) error {
		_, err := file.WriteAt([]byte(text), 0)
		return errors.Join(err, file.Sync())
	})
}

// verify reports whether that text is there, and whether everybody may write.
func (d disk) verify(text string) act {
	return d.open("verify", os.O_RDONLY, func(w *walker, file *os.File) error {
		got := make([]byte, len(text))
		if _, err := file.ReadAt(got, 0); err != nil || string(got) != text {
			return fmt.Errorf("%s has %q, want %q: %w", file.Name(), got, text, err)
		}
		root, err := os.Stat(d.target(w))
		if err == nil && root.IsDir() && w.mounted(d.target(w)) && root.Mode().Perm() != 0o777 {
			err = fmt.Errorf("the volume has mode %v", root.Mode())
		}
		return ignoreMissing(err)
	})
}

// sized reports whether a workload has got the size: of a file system at least
// three quarters of it.
func (d disk) sized(size int64) act {
	return d.open("sized", os.O_RDONLY, func(w *walker, file *os.File) error {
		var got, least int64
		var err error
		switch {
		case !w.mounted(d.target(w)): // nobody uses it
		case d.block:
			least = size
			got, err = file.Seek(0, io.SeekEnd)
		case d.fsType != "":
			var has unix.Statfs_t
			least = size / 4 * 3
			err = unix.Fstatfs(int(file.Fd()), &has)
			got = int64(has.Blocks) * has.Bsize
		}
		if err == nil && got < least {
			err = fmt.Errorf("%s has %d bytes of %d", file.Name(), got, size)
		}
		return err
	})
}

// ignoreMissing is no error for what does not exist.
func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// mounted reports whether something is mounted at a path.
func (w *walker) mounted(path string) bool {
	w.t.Helper()
	if !kernel() {
		return false
	}
	found, err := mount.Kernel{}.Mounted(w.ctx, path)
	w.must(nil, err)
	return found
}

// missing reports whether a file is not there.
func missing(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}
