package backend

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// imagePresenter attaches the file to a device, and mounts the file system on it:
// a persistent volume at the staging path, of which targets are bind mounts,
// an inline volume at its target.
type imagePresenter struct {
	*Node
	fsType string
}

var _ presenter = imagePresenter{}

func (i imagePresenter) stage(ctx context.Context, known *volume.NodeVolume) error {
	stage := known.Stage
	if err := i.dropBroken(ctx, known); err != nil {
		return err
	}
	return i.mount(ctx, known, stage.Path, stage.CannotWrite(), stage.Capability.MountFlags)
}

// dropBroken unmounts a staged file system that became read-only, so that stage
// checks and mounts it again. For a published volume it is an ErrPrecondition.
func (i imagePresenter) dropBroken(ctx context.Context, known *volume.NodeVolume) error {
	staged, err := i.stillStaged(ctx, known)
	if err != nil || !staged {
		return err
	}
	broken, err := i.becameReadOnly(ctx, known, known.Stage.Path)
	if err != nil || !broken {
		return err
	}
	if len(known.Targets) > 0 {
		return i.checkWritable(ctx, known, known.Stage.Path)
	}
	return i.release(ctx, known)
}

// mount makes the file system of a new volume, and mounts it. A snapshot or a
// clone may be larger than its source, so that the file system grows here, too.
// After an error the file system may be mounted, and the device attached.
func (i imagePresenter) mount(ctx context.Context, known *volume.NodeVolume, path string, readOnly bool, flags []string) error {
	if err := i.format(ctx, known, path); err != nil {
		return err
	}
	if readOnly {
		if err := i.replay(ctx, known, path); err != nil {
			return err
		}
	}
	device, err := i.cfg.Devices.Attach(ctx, i.disk(known), readOnly)
	if err != nil {
		return err
	}
	err = i.mountDevice(ctx, known, device, path, filesystem.Options{Flags: flags, ReadOnly: readOnly, Grow: !readOnly})
	if err != nil || slices.Contains(flags, "ro") {
		return err
	}
	return i.contents(known).Replayed(known.ID) // by this mount
}

// replay mounts a copy for writing once, before it is mounted read-only: the
// journal of a source in use has changes, which the kernel cannot write to a
// read-only device.
func (i imagePresenter) replay(ctx context.Context, known *volume.NodeVolume, path string) (err error) {
	contents := i.contents(known)
	unlock, pending, err := contents.Unreplayed(known.ID)
	if err != nil || !pending {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	device, err := i.cfg.Devices.Attach(ctx, i.disk(known), false)
	if err != nil {
		return err
	}
	if err := i.mountDevice(ctx, known, device, path, filesystem.Options{}); err != nil {
		return err
	}
	if err := i.unmountAll(ctx, path); err != nil {
		return err
	}
	i.cfg.Step.at("replay:done")
	if err := contents.Replayed(known.ID); err != nil {
		return err
	}
	return i.detach(ctx, known, false)
}

func (i imagePresenter) mountDevice(ctx context.Context, known *volume.NodeVolume, device, path string, o filesystem.Options) error {
	if err := mount.MakePoint(i.path(known), path); err != nil {
		return err
	}
	o.Type = i.fsType
	err := i.cfg.Filesystems.Mount(ctx, device, path, o)
	if errors.Is(err, filesystem.ErrOccupied) {
		return fmt.Errorf("%w: %w", volume.ErrPrecondition, err)
	}
	return err
}

// format makes the file system of a volume that has none yet. It wipes the rest
// of an interrupted attempt, which no workload has used.
func (i imagePresenter) format(ctx context.Context, known *volume.NodeVolume, path string) error {
	contents := i.contents(known)
	blank, err := contents.Unformatted(known.ID)
	if err != nil || !blank {
		return err
	}
	if err := i.unmountOwn(ctx, known, path); err != nil {
		return err
	}
	if err := i.detachAll(ctx, known); err != nil {
		return err
	}
	if err := contents.Wipe(known.ID); err != nil {
		return err
	}
	device, err := i.cfg.Devices.Attach(ctx, i.disk(known), false)
	if err != nil {
		return err
	}
	if err := i.initFilesystem(ctx, known, device, path); err != nil {
		return err
	}
	i.cfg.Step.at("format:done")
	if err := contents.Formatted(known.ID); err != nil {
		return err
	}
	return i.detach(ctx, known, false)
}

// unmountOwn unmounts the file system of the volume at a path, and no other.
func (i imagePresenter) unmountOwn(ctx context.Context, known *volume.NodeVolume, path string) error {
	for _, readOnly := range []bool{true, false} {
		device, err := i.cfg.Devices.Device(ctx, i.disk(known), readOnly)
		if err != nil {
			return err
		}
		if device == "" {
			continue
		}
		shown, _, err := i.cfg.Filesystems.IsMountOf(ctx, device, path)
		if err != nil {
			return err
		}
		if shown {
			return i.unmountAll(ctx, path)
		}
	}
	return nil
}

// initFilesystem makes a file system, and sets owner and mode of its root directory, and
// for an inline volume the group of its pod. Unmounting makes all of it durable.
func (i imagePresenter) initFilesystem(ctx context.Context, known *volume.NodeVolume, device, path string) error {
	attributes, err := i.attributes(known)
	if err != nil {
		return err
	}
	i.cfg.Step.at("format:make")
	if err := i.mountDevice(ctx, known, device, path, filesystem.Options{}); err != nil {
		return err
	}
	i.cfg.Step.at("format:attributes")
	if err := applyOwnership(path, attributes); err != nil {
		return err
	}
	i.cfg.Step.at("format:unmount")
	return i.unmountAll(ctx, path)
}

// attributes are the requested owner and mode of the volume.
func (i imagePresenter) attributes(known *volume.NodeVolume) (volume.Attributes, error) {
	if known.Ephemeral != nil {
		return volume.ParseInline(known.Ephemeral.Attributes)
	}
	persistent, err := i.lookupPersistent(known.ID)
	if err != nil {
		return volume.Attributes{}, err
	}
	return volume.ParseParameters(persistent.Parameters)
}

func (i imagePresenter) stillStaged(ctx context.Context, known *volume.NodeVolume) (bool, error) {
	return i.isMountedAt(ctx, known, known.Stage.Path, known.Stage.CannotWrite())
}

// isMountedAt reports whether the finished file system is mounted at a path: format
// mounts an unfinished one there, too.
func (i imagePresenter) isMountedAt(ctx context.Context, known *volume.NodeVolume, path string, readOnly bool) (bool, error) {
	if blank, err := i.contents(known).Unformatted(known.ID); err != nil || blank {
		return false, err
	}
	device, err := i.cfg.Devices.Device(ctx, i.disk(known), readOnly)
	if err != nil || device == "" {
		return false, err
	}
	shown, _, err := i.cfg.Filesystems.IsMountOf(ctx, device, path)
	return shown, err
}

// release unmounts the staging path, where a failed or interrupted stage may have
// left the file system mounted, and detaches the device.
func (i imagePresenter) release(ctx context.Context, known *volume.NodeVolume) error {
	if err := i.unmountOwn(ctx, known, known.Stage.Path); err != nil {
		return err
	}
	i.cfg.Step.at("unstage:detach")
	return i.detachAll(ctx, known)
}

func (i imagePresenter) publish(ctx context.Context, known *volume.NodeVolume, target *volume.Target) error {
	if known.Ephemeral != nil {
		if there, err := i.stillPublished(ctx, known, target); err != nil {
			return err
		} else if there {
			return i.checkWritable(ctx, known, target.Path)
		}
		err := i.mount(ctx, known, target.Path, known.CannotWrite(target), target.Capability.MountFlags)
		if err != nil {
			err = errors.Join(err, i.undoMount(ctx, known, target))
		}
		return err
	}
	return i.bind(ctx, target.Source, target.Path, targetOptions(known, target))
}

// undoMount undoes a failed mount of an inline volume. The device stays attached
// while another target uses it.
func (i imagePresenter) undoMount(ctx context.Context, known *volume.NodeVolume, target *volume.Target) error {
	ctx, cancel := withUndoTimeout(ctx)
	defer cancel()
	err := i.unmountOwn(ctx, known, target.Path)
	if err != nil || slices.ContainsFunc(known.Targets, func(t volume.Target) bool { return t.Path != target.Path }) {
		return err
	}
	return i.detachAll(ctx, known)
}

func (i imagePresenter) stillPublished(ctx context.Context, known *volume.NodeVolume, target *volume.Target) (bool, error) {
	if known.Ephemeral != nil {
		return i.isMountedAt(ctx, known, target.Path, known.CannotWrite(target))
	}
	return i.cfg.Mounter.IsMountOf(ctx, target.Source, target.Path, targetOptions(known, target))
}

// retire detaches the device of an inline volume with its last target.
func (i imagePresenter) retire(ctx context.Context, known *volume.NodeVolume) error {
	if known.Ephemeral == nil || len(known.Targets) > 0 {
		return nil
	}
	i.cfg.Step.at("untarget:detach")
	return i.detachAll(ctx, known)
}

// grow resizes the device, then the file system: the file already has its size.
func (i imagePresenter) grow(ctx context.Context, known *volume.NodeVolume) error {
	if err := i.cfg.Devices.Resize(ctx, i.disk(known)); err != nil {
		return err
	}
	if known.Stage.CannotWrite() {
		return nil // the next writable stage makes the file system larger
	}
	device, err := i.cfg.Devices.Device(ctx, i.disk(known), false)
	if err != nil {
		return err
	}
	return i.cfg.Filesystems.Grow(ctx, device, known.Stage.Path)
}

// stats are those of the file system, which enforces its size.
func (i imagePresenter) stats(ctx context.Context, known *volume.NodeVolume, _ int64) (*volume.Stats, error) {
	usage, err := i.cfg.Filesystems.Usage(ctx, i.mountedAt(known))
	if err != nil {
		return nil, err
	}
	inodes := volume.Usage(usage.Inodes)
	return &volume.Stats{Bytes: volume.Usage(usage.Bytes), Inodes: &inodes}, nil
}

// mountedAt is a path at which the file system is mounted.
func (i imagePresenter) mountedAt(known *volume.NodeVolume) string {
	if known.Stage != nil {
		return known.Stage.Path
	}
	return known.Targets[0].Path
}
