package main

import (
	"context"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/examples/attached-block/array"
)

// CreateSnapshot implements driverkit.Snapshotter. The array finds the snapshot of a name itself. An array that takes its time returns when the point in
// time is fixed, with Ready false, and GetSnapshot says when the snapshot can be used.
func (d *disks) CreateSnapshot(ctx context.Context, req *driverkit.CreateSnapshotRequest) (*driverkit.Snapshot, error) {
	client := d.as(req.Secrets)
	volume, err := client.Get(ctx, volumeRef(req.Volume))
	if err != nil {
		return nil, kitError(err)
	}
	if _, err := req.Topology.Choose([]driverkit.Segments{segmentsOf(volume.Place)}); err != nil {
		return nil, err // The array copies within a pool only.
	}
	s, err := client.Create(ctx, array.LUN{Ref: snapshotRef(""), Name: req.Name, Source: volume.Ref})
	if err != nil {
		return nil, kitError(err)
	}
	return snapshotOf(s), nil
}

// DeleteSnapshot implements driverkit.Snapshotter.
func (d *disks) DeleteSnapshot(ctx context.Context, req *driverkit.DeleteSnapshotRequest) error {
	return kitError(d.as(req.Secrets).Delete(ctx, snapshotRef(req.ID)))
}

// GetSnapshot implements driverkit.Snapshotter.
func (d *disks) GetSnapshot(ctx context.Context, req *driverkit.GetSnapshotRequest) (*driverkit.Snapshot, error) {
	s, err := d.as(req.Secrets).Get(ctx, snapshotRef(req.ID))
	if err != nil {
		return nil, kitError(err)
	}
	return snapshotOf(s), nil
}

// ListSnapshots returns a page of the snapshots.
func (d *disks) ListSnapshots(ctx context.Context, req *driverkit.ListSnapshotsRequest) (*driverkit.Page[*driverkit.Snapshot], error) {
	all, err := d.as(req.Secrets).List(ctx, array.Snapshots, "")
	if err != nil {
		return nil, kitError(err)
	}
	var converted []*driverkit.Snapshot
	for _, s := range all {
		if req.Volume == "" || s.Source.ID == req.Volume {
			converted = append(converted, snapshotOf(s))
		}
	}
	return driverkit.PageOf(converted, func(s *driverkit.Snapshot) string { return s.ID }, req.After, req.Limit), nil
}

func snapshotOf(s array.LUN) *driverkit.Snapshot {
	return &driverkit.Snapshot{
		ID: s.ID, Volume: s.Source.ID, Size: s.Size, Created: s.Created, Ready: true, Topology: []driverkit.Segments{segmentsOf(s.Place)},
	}
}
