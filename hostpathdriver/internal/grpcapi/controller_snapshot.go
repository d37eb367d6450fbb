package grpcapi

import (
	"context"
	"errors"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// controllerSnapshots is the part that keeps snapshots.
type controllerSnapshots struct {
	service volume.SnapshotService
	// list is false when they are not listed.
	list bool
}

func (c controllerSnapshots) announceController() []controllerRPC {
	announced := []controllerRPC{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_GET_SNAPSHOT,
	}
	if c.list {
		announced = append(announced, csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS)
	}
	return announced
}

// CreateSnapshot makes a snapshot, or finds the one of that name. A real driver
// asks its storage system for it, with the name as the idempotency key, and
// answers as soon as writes to the volume no longer reach the snapshot, ready
// to use or not.
func (c *controllerSnapshots) CreateSnapshot(ctx context.Context, req *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	if err := checkName(req.GetName()); err != nil {
		return nil, err
	}
	source, err := parseField("source_volume_id", req.GetSourceVolumeId())
	if err != nil {
		return nil, err
	}
	created, err := c.service.CreateSnapshot(ctx, &volume.SnapshotRequest{
		Name:         req.GetName(),
		Source:       source,
		Parameters:   req.GetParameters(),
		Requirements: requirementsFrom(req.GetAccessibilityRequirements()),
	})
	if err != nil {
		return nil, statusOf(err)
	}
	return &csi.CreateSnapshotResponse{Snapshot: snapshotOf(created)}, nil
}

// DeleteSnapshot deletes a snapshot; one that does not exist is deleted. A real
// driver leaves alone the volumes that were made of it, or refuses.
func (c *controllerSnapshots) DeleteSnapshot(ctx context.Context, req *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	id, err := parseField("snapshot_id", req.GetSnapshotId())
	if err != nil {
		return nil, err
	}
	if err := c.service.DeleteSnapshot(ctx, id); err != nil {
		return nil, statusOf(err)
	}
	return &csi.DeleteSnapshotResponse{}, nil
}

// GetSnapshot returns one snapshot, ready to use or not. A real driver asks its
// storage system, not a cache.
func (c *controllerSnapshots) GetSnapshot(ctx context.Context, req *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	id, err := parseField("snapshot_id", req.GetSnapshotId())
	if err != nil {
		return nil, err
	}
	found, err := c.service.GetSnapshot(ctx, id)
	if err != nil {
		return nil, statusOf(err)
	}
	return &csi.GetSnapshotResponse{Snapshot: snapshotOf(found)}, nil
}

// ListSnapshots returns a page of the snapshots that existed when the first
// page was asked for: all of them, those of one volume, or a single one. What
// does not exist, or cannot, is an empty list. A real driver hands the paging
// of its storage system through, or keeps an index.
func (c *controllerSnapshots) ListSnapshots(ctx context.Context, req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	if !c.list {
		return nil, disabled("ListSnapshots", "enable-list-snapshots")
	}
	if err := checkMax(req.GetMaxEntries()); err != nil {
		return nil, err
	}
	if req.GetSnapshotId() != "" {
		return c.listOne(ctx, req)
	}
	page, err := c.service.ListSnapshots(ctx, volume.SnapshotListRequest{
		ListRequest: volume.ListRequest{Token: req.GetStartingToken(), Max: int(req.GetMaxEntries())},
		Source:      volume.ID(req.GetSourceVolumeId()),
	})
	if err != nil {
		return nil, statusOf(err)
	}
	answer := &csi.ListSnapshotsResponse{NextToken: page.Next, Entries: make([]*csi.ListSnapshotsResponse_Entry, 0, len(page.Snapshots))}
	for _, s := range page.Snapshots {
		answer.Entries = append(answer.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: snapshotOf(s)})
	}
	return answer, nil
}

// listOne lists a single snapshot. It has one page.
func (c *controllerSnapshots) listOne(ctx context.Context, req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	if req.GetStartingToken() != "" {
		return nil, status.Errorf(codes.Aborted, "starting_token: a list with snapshot_id %q has one page", req.GetSnapshotId())
	}
	answer := &csi.ListSnapshotsResponse{}
	id, err := volume.ParseID(req.GetSnapshotId())
	if err != nil {
		return answer, nil //nolint:nilerr // there is no snapshot with such an id
	}
	found, err := c.service.GetSnapshot(ctx, id)
	switch {
	case errors.Is(err, volume.ErrNotFound):
		return answer, nil
	case err != nil:
		return nil, statusOf(err)
	case req.GetSourceVolumeId() == "" || req.GetSourceVolumeId() == string(found.Source):
		answer.Entries = []*csi.ListSnapshotsResponse_Entry{{Snapshot: snapshotOf(found)}}
	}
	return answer, nil
}

// fromSnapshot is the source of a restored volume.
func fromSnapshot(from *csi.VolumeContentSource) (volume.Source, bool, error) {
	source, ok := from.GetType().(*csi.VolumeContentSource_Snapshot)
	if !ok {
		return volume.Source{}, false, nil
	}
	id, err := parseField("volume_content_source.snapshot.snapshot_id", source.Snapshot.GetSnapshotId())
	return volume.Source{Snapshot: id}, true, err
}
