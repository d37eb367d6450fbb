package driverkit

import (
	"context"
	"iter"
	"time"

	"github.com/longshore-csi/longshore/driverkit/extent"
)

// Snapshotter is a Backend with snapshots. It serves CreateSnapshot, DeleteSnapshot and GetSnapshot; CreateRequest.Source may be a snapshot.
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

// SnapshotLister is a Snapshotter that can list its snapshots. It serves ListSnapshots.
type SnapshotLister interface {
	Snapshotter

	// ListSnapshots returns a page of snapshots, sorted by id (CSI v1.13, "ListSnapshots").
	ListSnapshots(ctx context.Context, req *ListSnapshotsRequest) ([]*Snapshot, error)
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

// GroupSnapshotter is a Snapshotter that makes snapshots of several volumes at one point in time. It serves the GroupController.
type GroupSnapshotter interface {
	// CreateGroupSnapshot makes a snapshot of each volume, all at one point in time or none. The name is the idempotency key, as for
	// CreateSnapshot. Errors: ErrNotFound for a volume, ErrPrecondition for volumes that cannot be in one group
	// (CSI v1.13, "CreateVolumeGroupSnapshot").
	CreateGroupSnapshot(ctx context.Context, req *CreateGroupSnapshotRequest) (*GroupSnapshot, error)
	// DeleteGroupSnapshot deletes a group with its snapshots. NotFound of it is success (CSI v1.13, "DeleteVolumeGroupSnapshot").
	DeleteGroupSnapshot(ctx context.Context, req *DeleteGroupSnapshotRequest) error
	// GetGroupSnapshot returns a group by its id, or ErrNotFound (CSI v1.13, "GetVolumeGroupSnapshot").
	GetGroupSnapshot(ctx context.Context, req *GetGroupSnapshotRequest) (*GroupSnapshot, error)
}

// GroupSnapshot is a group of snapshots as the storage system knows it (CSI v1.13, "VolumeGroupSnapshot").
type GroupSnapshot struct {
	// ID identifies the group: at most 128 bytes without control characters.
	ID string
	// Snapshots are one for each volume.
	Snapshots []*Snapshot
	// Created is the point in time of the snapshots' data.
	Created time.Time
	// Ready says that volumes can be restored from all snapshots.
	Ready bool
}

// CreateGroupSnapshotRequest asks for a group of snapshots.
type CreateGroupSnapshotRequest struct {
	// Name is unique per driver: at most 128 bytes without control characters other than tab and line ends.
	Name string
	// Volumes are the ids of the sources; at least one.
	Volumes []string
	// Parameters are those of the VolumeGroupSnapshotClass.
	Parameters map[string]string
	// Secrets are those of the VolumeGroupSnapshotClass.
	Secrets Secrets
}

// DeleteGroupSnapshotRequest asks to delete a group.
type DeleteGroupSnapshotRequest struct {
	// ID is GroupSnapshot.ID of CreateGroupSnapshot.
	ID string
	// Secrets are those of the VolumeGroupSnapshotClass.
	Secrets Secrets
}

// GetGroupSnapshotRequest asks for a group.
type GetGroupSnapshotRequest struct {
	// ID is GroupSnapshot.ID of CreateGroupSnapshot, or any other text.
	ID string
	// Secrets are those of the VolumeGroupSnapshotClass.
	Secrets Secrets
}

// BlockMetadataReporter is a Snapshotter that knows which parts of a snapshot of a block volume have data, or differ from an earlier one, so that a backup
// program reads no more than those. It serves SnapshotMetadata.
type BlockMetadataReporter interface {
	// Blocks returns the ranges of a snapshot that are allocated, or, with BlocksRequest.Base, that differ from those of the base. Errors: ErrNotFound
	// for a snapshot, ErrInvalid for snapshots of different volumes, ErrPrecondition where the changes were not tracked, upon which the CO makes a
	// full backup (CSI v1.13, "GetMetadataAllocated", "GetMetadataDelta").
	Blocks(ctx context.Context, req *BlocksRequest) (*Blocks, error)
}

// BlocksRequest asks for ranges of a snapshot.
type BlocksRequest struct {
	// Snapshot is Snapshot.ID of CreateSnapshot.
	Snapshot string
	// Base is the id of an earlier snapshot of the same volume; empty asks for the allocated ranges.
	Base string
	// Offset is the byte from which ranges are wanted: a Backend may leave out those before it.
	Offset int64
	// Secrets are those of the VolumeSnapshotClass.
	Secrets Secrets
}

// Blocks are ranges of a snapshot.
type Blocks struct {
	// VolumeSize is the size in bytes of the volume that the snapshot was taken of.
	VolumeSize int64
	// BlockSize cuts the ranges in blocks of so many bytes, of which they must be multiples; 0 sends ranges as they are
	// (CSI v1.13, "BlockMetadataType").
	BlockSize int64
	// Ranges yields the ranges in ascending order without overlaps, until it yields an error. It runs as long as the CO reads.
	Ranges iter.Seq2[BlockRange, error]
}

// BlockRange is a part of a snapshot: Offset is the first byte, Size the number of bytes. Package extent finds those of sparse files.
type BlockRange = extent.Range
