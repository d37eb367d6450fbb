package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/longshore-csi/longshore/driverkit"
)

// Stage implements driverkit.Backend: it finds the device of an attached volume; the kit makes a file system and mounts it. A vendor logs in to the
// target here, has the kernel look for new devices, and waits until udev has made /dev/disk/by-id/...
func (d *disks) Stage(ctx context.Context, req *driverkit.StageRequest) (*driverkit.Staged, error) {
	path := req.PublishContext[pathKey]
	readOnly, err := strconv.ParseBool(req.PublishContext[readOnlyKey])
	if path == "" || err != nil {
		return nil, fmt.Errorf("publish_context: %v: must have %q and %q=true or false, as of ControllerPublishVolume: %w",
			req.PublishContext, pathKey, readOnlyKey, driverkit.ErrInvalid)
	}
	device, err := d.devices.Device(ctx, path, readOnly)
	if err != nil {
		return nil, err
	}
	if device == "" {
		return nil, fmt.Errorf("volume %q: its device is not visible on this node yet: %w", req.ID, driverkit.ErrUnavailable)
	}
	return &driverkit.Staged{Device: device, ReadOnly: readOnly}, nil
}

// Unstage implements driverkit.Backend. The kit has unmounted the volume, and the array removes its device in Detach. A vendor removes the device from
// the node here, and logs out of the target where it was the last one; a device that has gone already is no error.
func (d *disks) Unstage(context.Context, *driverkit.UnstageRequest) error { return nil }

// ExpandOnNode implements driverkit.NodeExpander: the kernel reads the size of the device again, and the kit then grows the file system. A vendor has
// the paths of the device rescanned here.
func (d *disks) ExpandOnNode(ctx context.Context, req *driverkit.NodeExpandRequest) error {
	return d.devices.Resize(ctx, req.PublishContext[pathKey])
}
