package main

import (
	"context"
	"strconv"

	"github.com/longshore-csi/longshore/driverkit"
)

// The keys of the publish context: what a node needs to find the device of a volume. An array with iSCSI puts portal, target and LUN there.
const (
	pathKey     = "path"
	readOnlyKey = "readOnly"
)

// Attach implements driverkit.Attacher. The kit has refused a second node where the access mode allows one; the array refuses unknown nodes, and more
// volumes than a node may have.
func (d *disks) Attach(ctx context.Context, req *driverkit.AttachRequest) (*driverkit.Attached, error) {
	path, err := d.as(req.Secrets).Export(ctx, volumeRef(req.ID), req.Node, req.ReadOnly)
	if err != nil {
		return nil, kitError(err)
	}
	return &driverkit.Attached{PublishContext: map[string]string{pathKey: path, readOnlyKey: strconv.FormatBool(req.ReadOnly)}}, nil
}

// Detach implements driverkit.Attacher. The array cuts the node off before it answers: a node that hangs cannot write any more when another one has
// the volume.
func (d *disks) Detach(ctx context.Context, req *driverkit.DetachRequest) error {
	return kitError(d.as(req.Secrets).Unexport(ctx, volumeRef(req.ID), req.Node))
}
