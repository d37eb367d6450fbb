package backend

import (
	"context"
	"fmt"
	"slices"

	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// becameReadOnly reports whether a mount of the volume that has to be writable
// refuses writes. A device has no mount that could.
func (n *Node) becameReadOnly(ctx context.Context, known *volume.NodeVolume, path string) (bool, error) {
	if known.Device() || wantsReadOnly(known, path) {
		return false, nil
	}
	return n.cfg.Mounter.ReadOnly(ctx, path)
}

// wantsReadOnly reports whether the CO has asked for a read-only mount.
func wantsReadOnly(known *volume.NodeVolume, path string) bool {
	var flags []string
	readOnly := false
	if known.Stage != nil {
		flags, readOnly = known.Stage.Capability.MountFlags, known.Stage.CannotWrite()
	}
	if target := known.TargetAt(path); target != nil {
		flags, readOnly = slices.Concat(flags, target.Capability.MountFlags), known.CannotWrite(target)
	}
	return readOnly || slices.Contains(flags, "ro")
}

// checkWritable refuses a mount that became read-only: an ErrPrecondition.
func (n *Node) checkWritable(ctx context.Context, known *volume.NodeVolume, path string) error {
	broken, err := n.becameReadOnly(ctx, known, path)
	if err == nil && broken {
		err = fmt.Errorf("volume %q: the file system at %q became read-only, as the kernel makes it after an I/O error (see its log); "+
			"it has to be unpublished and staged again: %w", known.ID, path, volume.ErrPrecondition)
	}
	return err
}

// checkOwn refuses to unmount at a path that no record of the volume names, unless
// the volume is mounted there: an ErrPrecondition. No mount is no error.
func (n *Node) checkOwn(ctx context.Context, id volume.ID, path string) error {
	mounted, err := n.cfg.Mounter.Mounted(ctx, path)
	if err != nil || !mounted {
		return err
	}
	for _, contents := range n.everyContents(id) {
		if own, err := n.isMountOfContents(ctx, contents, id, path); err != nil || own {
			return err
		}
	}
	return fmt.Errorf("volume %q: something else is mounted at %q: %w", id, path, volume.ErrPrecondition)
}

// everyContents are the stores in which contents of a volume may be.
func (n *Node) everyContents(id volume.ID) []*Contents {
	list := n.homes.everywhere(volumesDir)
	home := ""
	if persistent, err := n.lookupPersistent(id); err == nil {
		home = persistent.Home
	}
	return append(list, n.persistentContents(home))
}

// isMountOfContents reports whether a path is a mount of the directory, the file system
// or the device of a volume.
func (n *Node) isMountOfContents(ctx context.Context, contents *Contents, id volume.ID, path string) (bool, error) {
	own, err := n.cfg.Mounter.IsMountOf(ctx, contents.Path(id), path, mount.Options{})
	if err != nil || own {
		return own, err
	}
	for _, readOnly := range []bool{true, false} {
		device, err := n.cfg.Devices.Device(ctx, contents.Disk(id), readOnly)
		if err != nil || device == "" {
			if err != nil {
				return false, err
			}
			continue
		}
		shown, err := n.isMountOfDevice(ctx, device, path)
		if err != nil || shown {
			return shown, err
		}
	}
	return false, nil
}

func (n *Node) isMountOfDevice(ctx context.Context, device, path string) (bool, error) {
	shown, err := n.cfg.Mounter.IsMountOf(ctx, device, path, mount.Options{})
	if err == nil && !shown {
		shown, _, err = n.cfg.Filesystems.IsMountOf(ctx, device, path)
	}
	return shown, err
}

// unmountAll removes every mount at a path: a crash between two attempts may have
// stacked them.
func (n *Node) unmountAll(ctx context.Context, path string) error {
	return mount.UnmountAll(ctx, n.cfg.Mounter, path)
}
