package backend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/loop"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// A block volume is staged by attaching its file to a device, and published by
// mounting the device's node at a file. Nothing is mounted at the staging path.
// A mount cannot make a device read-only, so read-only targets share a second
// device, which is read-only itself.

// disk is the file of a block volume.
func (n *Node) disk(id volume.ID) string {
	return filepath.Join(n.persistentPath(id), diskName)
}

// attach makes the device of a staged block volume.
func (n *Node) attach(ctx context.Context, id volume.ID, stage *volume.Stage) error {
	_, err := n.cfg.Devices.Attach(ctx, n.disk(id), stage.CannotWrite())
	return err
}

// attached tells whether a staged block volume has its device.
func (n *Node) attached(ctx context.Context, known *volume.NodeVolume) (bool, error) {
	device, err := n.cfg.Devices.Device(ctx, n.disk(known.ID), known.Stage.CannotWrite())
	return device != "", err
}

// intactDevice tells whether a target shows its device.
func (n *Node) intactDevice(ctx context.Context, known *volume.NodeVolume, target *volume.Target) (bool, error) {
	device, err := n.cfg.Devices.Device(ctx, n.disk(known.ID), known.CannotWrite(target))
	if err != nil || device == "" {
		return false, err
	}
	return n.cfg.Mounter.Holds(ctx, device, target.Path, mount.Options{})
}

// deviceAt tells whether a path that is neither staged nor published shows a
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
		device, err := n.cfg.Devices.Device(ctx, n.disk(known.ID), readOnly)
		if err != nil || device == "" {
			return false
		}
		own, err := os.Stat(device)
		return err == nil && os.SameFile(own, shown)
	})
}

// dropStale unmounts the node of a device that was lost: by now it may be that
// of another volume.
func (n *Node) dropStale(ctx context.Context, known *volume.NodeVolume, target *volume.Target) error {
	recorded := known.TargetAt(target.Path)
	if recorded == nil || recorded.Capability.Access != volume.AccessBlock {
		return nil
	}
	intact, err := n.intactDevice(ctx, known, recorded)
	if err != nil || intact {
		return err
	}
	return n.unmountAll(ctx, target.Path)
}

// bindDevice mounts the device at the target, and attaches the read-only one
// where it is the first to be asked for.
func (n *Node) bindDevice(ctx context.Context, known *volume.NodeVolume, target *volume.Target) error {
	device, err := n.cfg.Devices.Attach(ctx, n.disk(known.ID), known.CannotWrite(target))
	if err != nil {
		return err
	}
	return n.bind(ctx, device, target.Path, mount.Options{})
}

// releaseStage lets go of both devices of a staged block volume.
func (n *Node) releaseStage(ctx context.Context, known *volume.NodeVolume) error {
	if !known.Device() {
		return nil
	}
	n.cfg.Step.at("unstage:detach")
	return errors.Join(n.detach(ctx, known.ID, true), n.detach(ctx, known.ID, false))
}

// releaseTargets lets go of the read-only device when no target shows it any
// more, unless the volume was staged read-only.
func (n *Node) releaseTargets(ctx context.Context, known *volume.NodeVolume) error {
	staged := known.Stage != nil && known.Stage.CannotWrite()
	if staged || slices.ContainsFunc(known.Targets, func(t volume.Target) bool { return known.CannotWrite(&t) }) {
		return nil
	}
	return n.detach(ctx, known.ID, true)
}

// detach lets go of a device. One that somebody has open is an ErrInUse.
func (n *Node) detach(ctx context.Context, id volume.ID, readOnly bool) error {
	err := n.cfg.Devices.Detach(ctx, n.disk(id), readOnly)
	if errors.Is(err, loop.ErrBusy) {
		return fmt.Errorf("volume %q: %w: %w", id, volume.ErrInUse, err)
	}
	return err
}
