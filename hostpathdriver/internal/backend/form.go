package backend

import (
	"cmp"
	"context"
	"slices"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// form is how a node shows contents of one kind. What it is given is checked;
// the node keeps the records.
type form interface {
	// stage makes what a staged volume needs, and mounts at the staging path
	// what is mounted there.
	stage(ctx context.Context, known *volume.NodeVolume) error
	// staged reports whether there still is what stage has made.
	staged(ctx context.Context, known *volume.NodeVolume) (bool, error)
	// release undoes stage, also one that has failed: it unmounts what stage has
	// mounted, and lets go of devices.
	release(ctx context.Context, known *volume.NodeVolume) error
	// publish shows the contents at a target.
	publish(ctx context.Context, known *volume.NodeVolume, target *volume.Target) error
	// published reports whether the target shows the contents as promised.
	published(ctx context.Context, known *volume.NodeVolume, target *volume.Target) (bool, error)
	// retire undoes what only targets needed that are not there any more.
	retire(ctx context.Context, known *volume.NodeVolume) error
	// grow lets users see that the contents have become larger.
	grow(ctx context.Context, known *volume.NodeVolume) error
	// stats measures contents that may get as large as size.
	stats(ctx context.Context, known *volume.NodeVolume, size int64) (*volume.Stats, error)
}

// form returns how the node shows a volume.
func (n *Node) form(known *volume.NodeVolume) form {
	switch f := known.Form(); {
	case !f.Disk:
		return directoryForm{n}
	case f.FSType == "":
		return deviceForm{n}
	default:
		return imageForm{Node: n, fsType: f.FSType}
	}
}

// directoryForm binds the directory, and needs nothing else.
type directoryForm struct{ *Node }

var _ form = directoryForm{}

func (d directoryForm) stage(ctx context.Context, known *volume.NodeVolume) error {
	if there, err := d.staged(ctx, known); err != nil {
		return err
	} else if there {
		return d.checkWritable(ctx, known, known.Stage.Path)
	}
	return d.bind(ctx, d.path(known), known.Stage.Path, stageOptions(known.Stage))
}

func (d directoryForm) staged(ctx context.Context, known *volume.NodeVolume) (bool, error) {
	return d.cfg.Mounter.IsMountOf(ctx, d.path(known), known.Stage.Path, stageOptions(known.Stage))
}

func (directoryForm) release(context.Context, *volume.NodeVolume) error { return nil }

func (d directoryForm) publish(ctx context.Context, known *volume.NodeVolume, target *volume.Target) error {
	if there, err := d.published(ctx, known, target); err != nil {
		return err
	} else if there {
		return d.checkWritable(ctx, known, target.Path)
	}
	return d.bind(ctx, d.source(known, target), target.Path, targetOptions(known, target))
}

func (d directoryForm) published(ctx context.Context, known *volume.NodeVolume, target *volume.Target) (bool, error) {
	return d.cfg.Mounter.IsMountOf(ctx, d.source(known, target), target.Path, targetOptions(known, target))
}

// source is what a target shows: the staging path, or an inline volume itself.
func (d directoryForm) source(known *volume.NodeVolume, target *volume.Target) string {
	if known.Ephemeral != nil {
		return d.path(known)
	}
	return target.Source
}

func (directoryForm) retire(context.Context, *volume.NodeVolume) error { return nil }

// grow has nothing to do: a directory has no size of its own.
func (directoryForm) grow(context.Context, *volume.NodeVolume) error { return nil }

// stats are known where the size is enforced. Else the files are added up, as
// the disk is shared by all volumes. Available is what is left of the size, and
// of the disk.
func (d directoryForm) stats(ctx context.Context, known *volume.NodeVolume, size int64) (*volume.Stats, error) {
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

// bindFlags leaves those that a bind mount knows. The others are the file
// system's, and were used when it was mounted.
func bindFlags(flags []string) []string {
	known := mount.Flags()
	return slices.DeleteFunc(slices.Clone(flags), func(flag string) bool { return !slices.Contains(known, flag) })
}

// contents is where the contents of a volume are kept.
func (n *Node) contents(known *volume.NodeVolume) *Contents {
	if known.Ephemeral != nil {
		return n.homes.contents(known.Home, volumesDir)
	}
	return n.persistentContents(known.Home)
}

// persistentContents are the controller's.
func (n *Node) persistentContents(home string) *Contents {
	return contentsAt(cmp.Or(home, n.cfg.StateDir), volumesDir, n.cfg.Mounter, n.cfg.Quotas)
}

// path is the directory with the contents of a volume.
func (n *Node) path(known *volume.NodeVolume) string { return n.contents(known).Path(known.ID) }

// disk is the file with the contents of a volume.
func (n *Node) disk(known *volume.NodeVolume) string { return n.contents(known).Disk(known.ID) }
