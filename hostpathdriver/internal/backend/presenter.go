package backend

import (
	"cmp"
	"context"
	"slices"

	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// presenter mounts and attaches volumes of one form on a node. Its callers have
// checked the arguments; the node keeps the records.
type presenter interface {
	// stage attaches the device of the volume and mounts at the staging path, as
	// far as the form needs it.
	stage(ctx context.Context, known *volume.NodeVolume) error
	// stillStaged reports whether the device and the mount that stage made still
	// exist.
	stillStaged(ctx context.Context, known *volume.NodeVolume) (bool, error)
	// release undoes stage, also a failed one: it unmounts the staging path and
	// detaches the devices.
	release(ctx context.Context, known *volume.NodeVolume) error
	// publish mounts the volume at a target.
	publish(ctx context.Context, known *volume.NodeVolume, target *volume.Target) error
	// stillPublished reports whether the target is still a mount of the volume with
	// the recorded options.
	stillPublished(ctx context.Context, known *volume.NodeVolume, target *volume.Target) (bool, error)
	// retire detaches devices that only removed targets needed.
	retire(ctx context.Context, known *volume.NodeVolume) error
	// grow resizes device and file system to the size of the contents.
	grow(ctx context.Context, known *volume.NodeVolume) error
	// stats measures contents that may get as large as size.
	stats(ctx context.Context, known *volume.NodeVolume, size int64) (*volume.Stats, error)
}

// presenter returns the presenter for the form of a volume.
func (n *Node) presenter(known *volume.NodeVolume) presenter {
	switch f := known.Form(); {
	case !f.Disk:
		return directoryPresenter{n}
	case f.FSType == "":
		return devicePresenter{n}
	default:
		return imagePresenter{Node: n, fsType: f.FSType}
	}
}

// directoryPresenter makes bind mounts of the directory.
type directoryPresenter struct{ *Node }

var _ presenter = directoryPresenter{}

func (d directoryPresenter) stage(ctx context.Context, known *volume.NodeVolume) error {
	if there, err := d.stillStaged(ctx, known); err != nil {
		return err
	} else if there {
		return d.checkWritable(ctx, known, known.Stage.Path)
	}
	return d.bind(ctx, d.path(known), known.Stage.Path, stageOptions(known.Stage))
}

func (d directoryPresenter) stillStaged(ctx context.Context, known *volume.NodeVolume) (bool, error) {
	return d.cfg.Mounter.IsMountOf(ctx, d.path(known), known.Stage.Path, stageOptions(known.Stage))
}

func (directoryPresenter) release(context.Context, *volume.NodeVolume) error { return nil }

func (d directoryPresenter) publish(ctx context.Context, known *volume.NodeVolume, target *volume.Target) error {
	if there, err := d.stillPublished(ctx, known, target); err != nil {
		return err
	} else if there {
		return d.checkWritable(ctx, known, target.Path)
	}
	return d.bind(ctx, d.source(known, target), target.Path, targetOptions(known, target))
}

func (d directoryPresenter) stillPublished(ctx context.Context, known *volume.NodeVolume, target *volume.Target) (bool, error) {
	return d.cfg.Mounter.IsMountOf(ctx, d.source(known, target), target.Path, targetOptions(known, target))
}

// source is the source of a target's bind mount: the staging path, or the
// directory of an inline volume.
func (d directoryPresenter) source(known *volume.NodeVolume, target *volume.Target) string {
	if known.Ephemeral != nil {
		return d.path(known)
	}
	return target.Source
}

func (directoryPresenter) retire(context.Context, *volume.NodeVolume) error { return nil }

// grow has nothing to do: a directory has no size of its own.
func (directoryPresenter) grow(context.Context, *volume.NodeVolume) error { return nil }

// stats come from the quota where the size is enforced. Else the sizes of the
// files are added up, as all volumes share the disk. Available is the lesser of
// the free space below the size and that of the disk.
func (d directoryPresenter) stats(ctx context.Context, known *volume.NodeVolume, size int64) (*volume.Stats, error) {
	limited, ok, err := d.cfg.Quotas.Usage(d.path(known))
	used := measurement{bytes: limited.Bytes, inodes: limited.Inodes}
	if err == nil && !ok {
		used, err = d.meter.measure(ctx, known.ID, d.path(known))
	}
	if err != nil {
		return nil, err
	}
	free, err := freeOf(d.path(known))
	if err != nil {
		return nil, err
	}
	return &volume.Stats{
		Bytes:  volume.Usage{Total: size, Used: used.bytes, Available: max(0, min(size-used.bytes, free.bytes))},
		Inodes: &volume.Usage{Total: used.inodes + free.inodes, Used: used.inodes, Available: free.inodes},
	}, nil
}

func stageOptions(s *volume.Stage) mount.Options {
	return mount.Options{ReadOnly: s.ReadOnly, Flags: bindFlags(s.Capability.MountFlags)}
}

func targetOptions(known *volume.NodeVolume, target *volume.Target) mount.Options {
	return mount.Options{ReadOnly: known.CannotWrite(target), Flags: bindFlags(target.Capability.MountFlags)}
}

// bindFlags returns the flags that a bind mount supports. The others are flags of
// the file system, and were used when it was mounted.
func bindFlags(flags []string) []string {
	known := mount.Flags()
	return slices.DeleteFunc(slices.Clone(flags), func(flag string) bool { return !slices.Contains(known, flag) })
}

// contents returns the store with the contents of a volume.
func (n *Node) contents(known *volume.NodeVolume) *Contents {
	if known.Ephemeral != nil {
		return n.homes.contents(known.Home, volumesDir)
	}
	return n.persistentContents(known.Home)
}

// persistentContents returns a store of the controller.
func (n *Node) persistentContents(home string) *Contents {
	return contentsAt(cmp.Or(home, n.cfg.StateDir), volumesDir, n.cfg.Mounter, n.cfg.Quotas)
}

// path is the directory with the contents of a volume.
func (n *Node) path(known *volume.NodeVolume) string { return n.contents(known).Path(known.ID) }

// disk is the file with the contents of a volume.
func (n *Node) disk(known *volume.NodeVolume) string { return n.contents(known).Disk(known.ID) }
