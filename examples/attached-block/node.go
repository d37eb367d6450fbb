package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/longshore-csi/longshore/driverkit"
)

// Stage implements driverkit.Stager: it finds the device of an attached volume; the kit makes a file system and mounts it. A vendor logs in to the
// target here, has the kernel look for new devices, and waits until udev has made /dev/disk/by-id/...
func (d *disks) Stage(_ context.Context, req *driverkit.StageRequest) (*driverkit.Staged, error) {
	path := req.PublishContext[pathKey]
	readOnly, err := strconv.ParseBool(req.PublishContext[readOnlyKey])
	if path == "" || err != nil {
		return nil, fmt.Errorf("publish_context: %v: must have %q and %q=true or false, as of ControllerPublishVolume: %w",
			req.PublishContext, pathKey, readOnlyKey, driverkit.ErrInvalid)
	}
	device, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("volume %q: its device is not visible on this node yet: %w", req.ID, driverkit.ErrUnavailable)
	}
	return &driverkit.Staged{Device: device, ReadOnly: readOnly}, err
}

// Unstage implements driverkit.Stager. The kit has unmounted the volume, and the array removes its device in Detach. A vendor removes the device from
// the node here, and logs out of the target where it was the last one; a device that has gone already is no error.
func (d *disks) Unstage(context.Context, *driverkit.UnstageRequest) error { return nil }

// ExpandOnNode has the kernel read the size of the device again; the kit then grows the file system.
func (d *disks) ExpandOnNode(ctx context.Context, req *driverkit.NodeExpandRequest) (*driverkit.NodeExpanded, error) {
	return &driverkit.NodeExpanded{}, d.rescan(ctx, req.Staged.Device)
}

// rescan is for loop devices, which the mock array has. A vendor writes to /sys/block/NAME/device/rescan of each path.
func rescan(ctx context.Context, device string) error {
	if out, err := exec.CommandContext(ctx, "losetup", "--set-capacity", device).CombinedOutput(); err != nil {
		return fmt.Errorf("read the size of %s again: %w: %s", device, err, out)
	}
	return nil
}
