package driverkit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Snapshotter makes, deletes and finds snapshots.
type Snapshotter interface {
	// CreateSnapshot makes a snapshot. The name is the idempotency key: if there is a snapshot of this name, CreateSnapshot returns that one as it
	// is. It returns when the snapshot's point in time is fixed; the snapshot may become ready later. Errors: ErrNotFound for the volume,
	// ErrExhausted (CSI v1.13, "CreateSnapshot").
	CreateSnapshot(ctx context.Context, req *CreateSnapshotRequest) (*Snapshot, error)
	// DeleteSnapshot deletes a snapshot. NotFound of it is success, ErrInUse is for a snapshot that volumes depend on (CSI v1.13, "DeleteSnapshot").
	DeleteSnapshot(ctx context.Context, req *DeleteSnapshotRequest) error
	// GetSnapshot returns a snapshot by its id, or ErrNotFound (CSI v1.13, "GetSnapshot").
	GetSnapshot(ctx context.Context, req *GetSnapshotRequest) (*Snapshot, error)
}

// ListSnapshotsRequest asks for a page of snapshots.
type ListSnapshotsRequest struct {
	// Volume is the source of the wanted snapshots; empty means any.
	Volume string
	// After is the id after which the wanted snapshots are.
	After string
	// Limit is the greatest number of snapshots; 0 means all.
	Limit int
	// Secrets are those for listing snapshots.
	Secrets Secrets
}

// Snapshot is a snapshot as the storage system knows it (CSI v1.13, "Snapshot").
type Snapshot struct {
	// ID identifies the snapshot, Volume its source, and Group the group snapshot that it was made with, if any.
	ID, Volume, Group string
	// Size is the least size in bytes of a volume that is restored from the snapshot; 0 if it is not known.
	Size int64
	// Created is the point in time of the snapshot's data.
	Created time.Time
	// Ready says that volumes can be restored from the snapshot.
	Ready bool
	// Topology are the segments from which the snapshot can be restored; none means everywhere.
	Topology []Segments
}

// CreateSnapshotRequest asks for a snapshot.
type CreateSnapshotRequest struct {
	// Name is unique per driver: at most 128 bytes without control characters other than tab and line ends.
	Name string
	// Volume is the id of the source.
	Volume string
	// Parameters are those of the VolumeSnapshotClass.
	Parameters map[string]string
	// Secrets are those of the VolumeSnapshotClass.
	Secrets Secrets
	// Topology says from where volumes that are restored from the snapshot must be reachable. The kit compares it with Snapshot.Topology.
	Topology TopologyRequirement
}

// DeleteSnapshotRequest asks to delete a snapshot.
type DeleteSnapshotRequest struct {
	// ID is Snapshot.ID of CreateSnapshot, or any other text.
	ID string
	// Secrets are those of the VolumeSnapshotClass.
	Secrets Secrets
}

// GetSnapshotRequest asks for a snapshot.
type GetSnapshotRequest struct {
	// ID is Snapshot.ID of CreateSnapshot, or any other text.
	ID string
	// Secrets are those for listing snapshots.
	Secrets Secrets
}

// CreateSnapshot makes a snapshot, or finds the one of that name (CSI v1.13, "CreateSnapshot").
func (c *controller) CreateSnapshot(ctx context.Context, req *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	snapshotter := c.driver.Snapshotter
	if snapshotter == nil {
		return nil, unimplemented("CreateSnapshot")
	}
	op := operation{
		name: "snapshot " + req.GetName(), sources: []string{copied(volumeKey(req.GetSourceVolumeId()))}, secrets: req.GetSecrets(),
		invalid: errors.Join(checkName("name", req.GetName()), required("source_volume_id", req.GetSourceVolumeId())),
	}
	return perform(ctx, c.kit, op, func(ctx context.Context) (*csi.CreateSnapshotResponse, error) {
		topology := topologyOf(req.GetAccessibilityRequirements())
		made, err := snapshotter.CreateSnapshot(ctx, &CreateSnapshotRequest{
			Name: req.GetName(), Volume: req.GetSourceVolumeId(), Parameters: req.GetParameters(), Secrets: req.GetSecrets(), Topology: topology,
		})
		switch {
		case err != nil:
			return nil, uncertain(err)
		case made.Volume != req.GetSourceVolumeId():
			return nil, fmt.Errorf("snapshot %q exists as %q, of volume %q: %w", req.GetName(), made.ID, made.Volume, ErrExists)
		case !topology.Allows(made.Topology):
			return nil, fmt.Errorf("snapshot %q exists as %q: %w: it can be restored in %v, requested is one of %v", req.GetName(), made.ID, ErrExists, made.Topology, topology.Requisite)
		}
		return &csi.CreateSnapshotResponse{Snapshot: made.message()}, nil
	})
}

func (s *Snapshot) message() *csi.Snapshot {
	return &csi.Snapshot{
		SnapshotId: s.ID, SourceVolumeId: s.Volume, GroupSnapshotId: s.Group, SizeBytes: s.Size, CreationTime: timestamppb.New(s.Created), ReadyToUse: s.Ready,
		AccessibleTopology: topologiesOf(s.Topology),
	}
}

// DeleteSnapshot deletes a snapshot; one that does not exist is deleted (CSI v1.13, "DeleteSnapshot").
func (c *controller) DeleteSnapshot(ctx context.Context, req *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	snapshotter := c.driver.Snapshotter
	if snapshotter == nil {
		return nil, unimplemented("DeleteSnapshot")
	}
	id := req.GetSnapshotId()
	op := operation{ids: []string{snapshotKey(id), copied(snapshotKey(id))}, secrets: req.GetSecrets(), invalid: required("snapshot_id", id)}
	return perform(ctx, c.kit, op, func(ctx context.Context) (*csi.DeleteSnapshotResponse, error) {
		err := c.checkAlone(ctx, snapshotter, &GetSnapshotRequest{ID: id, Secrets: req.GetSecrets()})
		if err == nil {
			err = snapshotter.DeleteSnapshot(ctx, &DeleteSnapshotRequest{ID: id, Secrets: req.GetSecrets()})
		}
		return &csi.DeleteSnapshotResponse{}, ignoreNotFound(err, id)
	})
}

// checkAlone refuses to delete a snapshot that is part of a group (CSI v1.13, "DeleteSnapshot", INVALID_ARGUMENT).
func (c *controller) checkAlone(ctx context.Context, snapshotter Snapshotter, req *GetSnapshotRequest) error {
	if c.driver.GroupSnapshotter == nil {
		return nil
	}
	found, err := snapshotter.GetSnapshot(ctx, req)
	if err == nil && found.Group != "" {
		err = fmt.Errorf("snapshot %q: is part of group snapshot %q, and is deleted with the group: %w", found.ID, found.Group, ErrInvalid)
	}
	return ignoreNotFound(err, req.ID) // The driver may have more to delete than it finds.
}

// GetSnapshot returns one snapshot (CSI v1.13, "GetSnapshot").
func (c *controller) GetSnapshot(ctx context.Context, req *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	snapshotter := c.driver.Snapshotter
	if snapshotter == nil {
		return nil, unimplemented("GetSnapshot")
	}
	op := operation{secrets: req.GetSecrets(), invalid: required("snapshot_id", req.GetSnapshotId())}
	return perform(ctx, c.kit, op, func(ctx context.Context) (*csi.GetSnapshotResponse, error) {
		found, err := snapshotter.GetSnapshot(ctx, &GetSnapshotRequest{ID: req.GetSnapshotId(), Secrets: req.GetSecrets()})
		if err != nil {
			return nil, err
		}
		return &csi.GetSnapshotResponse{Snapshot: found.message()}, nil
	})
}

// ListSnapshots returns a page of the snapshots, sorted by id, or one snapshot (CSI v1.13, "ListSnapshots").
func (c *controller) ListSnapshots(ctx context.Context, req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	if c.driver.ListSnapshots == nil {
		return nil, unimplemented("ListSnapshots")
	}
	after, err := startOf(req)
	err = errors.Join(err, checkCharacters("snapshot_id", req.GetSnapshotId()), checkCharacters("source_volume_id", req.GetSourceVolumeId()))
	op := operation{secrets: req.GetSecrets(), invalid: err}
	return perform(ctx, c.kit, op, func(ctx context.Context) (*csi.ListSnapshotsResponse, error) {
		if req.GetSnapshotId() != "" {
			return c.listOne(ctx, req)
		}
		snapshots, next, err := page(int(req.GetMaxEntries()), func(limit int) (*Page[*Snapshot], error) {
			return c.driver.ListSnapshots(ctx, &ListSnapshotsRequest{
				Volume: req.GetSourceVolumeId(), After: after, Limit: limit, Secrets: req.GetSecrets(),
			})
		}, func(s *Snapshot) string { return s.ID })
		return listed(snapshots, next), err
	})
}

// listOne lists the snapshot of an id; none is no error.
func (c *controller) listOne(ctx context.Context, req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	found, err := c.driver.Snapshotter.GetSnapshot(ctx, &GetSnapshotRequest{ID: req.GetSnapshotId(), Secrets: req.GetSecrets()})
	if isNotFound(err) || err == nil && req.GetSourceVolumeId() != "" && req.GetSourceVolumeId() != found.Volume {
		return listed(nil, ""), nil
	}
	if err != nil {
		return nil, err
	}
	return listed([]*Snapshot{found}, ""), nil
}

func listed(snapshots []*Snapshot, next string) *csi.ListSnapshotsResponse {
	answer := &csi.ListSnapshotsResponse{NextToken: next}
	for _, s := range snapshots {
		answer.Entries = append(answer.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: s.message()})
	}
	return answer
}
