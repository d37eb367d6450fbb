package backend

import (
	"context"
	"os"
	"slices"

	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// devicePresenter attaches the file to a device, and mounts the device's node at
// targets that are files. Nothing is mounted at the staging path. A mount
// cannot make a device read-only, so read-only targets share a second device,
// which is read-only itself.
type devicePresenter struct{ *Node }

var _ presenter = devicePresenter{}

func (d devicePresenter) stage(ctx context.Context, known *volume.NodeVolume) error {
	_, err := d.cfg.Devices.Attach(ctx, d.disk(known), known.Stage.CannotWrite())
	return err
}

func (d devicePresenter) stillStaged(ctx context.Context, known *volume.NodeVolume) (bool, error) {
	device, err := d.cfg.Devices.Device(ctx, d.disk(known), known.Stage.CannotWrite())
	return device != "", err
}

func (d devicePresenter) release(ctx context.Context, known *volume.NodeVolume) error {
	d.cfg.Step.at("unstage:detach")
	return d.detachAll(ctx, known)
}

// publish attaches the read-only device for the first read-only target.
func (d devicePresenter) publish(ctx context.Context, known *volume.NodeVolume, target *volume.Target) error {
	device, err := d.cfg.Devices.Attach(ctx, d.disk(known), known.CannotWrite(target))
	if err != nil {
		return err
	}
	persistent, err := d.lookupPersistent(known.ID)
	if err != nil {
		return err
	}
	if err := d.setReadAhead(ctx, known, d.settingsOf(known, persistent)); err != nil {
		return err
	}
	return d.bind(ctx, device, target.Path, mount.Options{})
}

// dropStale unmounts the node of a device that was detached meanwhile: another
// volume may have that device by now.
func (d devicePresenter) dropStale(ctx context.Context, known *volume.NodeVolume, target *volume.Target) error {
	if known.TargetAt(target.Path) == nil {
		return nil
	}
	published, err := d.stillPublished(ctx, known, target)
	if err != nil || published {
		return err
	}
	return d.unmountAll(ctx, target.Path)
}

func (d devicePresenter) stillPublished(ctx context.Context, known *volume.NodeVolume, target *volume.Target) (bool, error) {
	device, err := d.cfg.Devices.Device(ctx, d.disk(known), known.CannotWrite(target))
	if err != nil || device == "" {
		return false, err
	}
	return d.cfg.Mounter.IsMountOf(ctx, device, target.Path, mount.Options{})
}

// retire detaches the read-only device when no target uses it any more, unless
// the volume was staged read-only.
func (d devicePresenter) retire(ctx context.Context, known *volume.NodeVolume) error {
	staged := known.Stage != nil && known.Stage.CannotWrite()
	if staged || slices.ContainsFunc(known.Targets, func(t volume.Target) bool { return known.CannotWrite(&t) }) {
		return nil
	}
	d.cfg.Step.at("untarget:detach")
	return d.detach(ctx, known, true)
}

func (d devicePresenter) grow(ctx context.Context, known *volume.NodeVolume) error {
	return d.cfg.Devices.Resize(ctx, d.disk(known))
}

// stats counts the blocks that were written to.
func (d devicePresenter) stats(ctx context.Context, known *volume.NodeVolume, size int64) (*volume.Stats, error) {
	used, err := d.meter.measure(ctx, known.ID, d.disk(known))
	if err != nil {
		return nil, err
	}
	free, err := freeOf(d.disk(known))
	if err != nil {
		return nil, err
	}
	return &volume.Stats{Bytes: volume.Usage{Total: size, Used: used.bytes, Available: max(0, min(size-used.bytes, free.bytes))}}, nil
}

// deviceAt reports whether a path that is neither staging nor target path is a
// device of the volume: the kubelet asks for the statistics of a block volume
// at a mount of its own.
func (n *Node) deviceAt(ctx context.Context, known *volume.NodeVolume, path string) bool {
	if !known.Device() {
		return false
	}
	shown, err := os.Stat(path)
	if err != nil {
		return false
	}
	return slices.ContainsFunc([]bool{false, true}, func(readOnly bool) bool {
		device, err := n.cfg.Devices.Device(ctx, n.disk(known), readOnly)
		if err != nil || device == "" {
			return false
		}
		own, err := os.Stat(device)
		return err == nil && os.SameFile(own, shown)
	})
}
