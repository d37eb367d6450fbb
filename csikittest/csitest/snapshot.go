package csitest

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Snapshot is the state of a snapshot, which is a content source of volumes.
type Snapshot struct {
	// ID is the handle, "snap-" and the name for snapshots made by CreateSnapshot.
	ID string
	// Name is the name given to CreateSnapshot, empty for members of a group.
	Name string
	// Size is the minimum size of a volume that is restored from it, in bytes.
	Size int64
	// SourceVolume is the ID of the volume that it was taken of, which may be gone.
	SourceVolume string
	// Parameters are those of CreateSnapshot.
	Parameters map[string]string
	// Created is when it was taken; zero: the driver does not report it.
	Created time.Time
	// ReadyAfter is how many more answers report it as not ready to use. Negative: all.
	ReadyAfter int
	// Topology is the segment from which it is accessible; nil: the driver does not report one.
	Topology map[string]string
	// Group is the ID of the group snapshot that it is a member of, or empty.
	Group string
}

func (s *Snapshot) clone() Snapshot {
	out := *s
	out.Parameters, out.Topology = maps.Clone(s.Parameters), maps.Clone(s.Topology)
	return out
}

// Snapshots returns the snapshots that exist now, sorted by ID.
func (d *Driver) Snapshots() []Snapshot {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]Snapshot, 0, len(d.snapshots))
	for _, id := range slices.Sorted(maps.Keys(d.snapshots)) {
		out = append(out, d.snapshots[id].clone())
	}
	return out
}

// AddSnapshot adds a snapshot that exists without CreateSnapshot; an existing one with that ID is replaced.
func (d *Driver) AddSnapshot(s Snapshot) {
	d.mu.Lock()
	defer d.mu.Unlock()
	setDefault(&s.Size, DefaultVolumeSize)
	added := s.clone()
	d.snapshots[s.ID] = &added
}

// RemoveSnapshot removes a snapshot. Volumes that were restored from it remain.
func (d *Driver) RemoveSnapshot(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.snapshots, id)
}

// CreateSnapshot takes a snapshot with the ID "snap-" and its name, or returns the existing snapshot of that name if it is of the
// same volume.
func (d *Driver) CreateSnapshot(_ context.Context, req *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := firstError(
		needController(d, csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT, "CreateSnapshot"),
		needField("name", req.GetName()),
		needField("source volume ID", req.GetSourceVolumeId()),
	); err != nil {
		return nil, err
	}
	id := "snap-" + req.GetName()
	s := d.snapshots[id]
	if s == nil {
		v, err := d.find(req.GetSourceVolumeId())
		if err != nil {
			return nil, err
		}
		if err := d.checkAccessible(v, req); err != nil {
			return nil, err
		}
		s = d.newSnapshot(id, v, req.GetParameters())
		s.Name = req.GetName()
	}
	if s.SourceVolume != req.GetSourceVolumeId() {
		return nil, status.Errorf(codes.AlreadyExists, "snapshot %q exists, of volume %q", s.Name, s.SourceVolume)
	}
	return &csi.CreateSnapshotResponse{Snapshot: s.report()}, nil
}

// checkAccessible checks that a snapshot of a volume can have the topology that is required. CSI spec v1.13, "CreateSnapshot".
func (d *Driver) checkAccessible(v *volume, req *csi.CreateSnapshotRequest) error {
	switch {
	case req.GetAccessibilityRequirements() == nil:
	case !d.o.SnapshotTopology:
		return d.violation("CreateSnapshot of %q with accessibility requirements, although SNAPSHOT_ACCESSIBILITY_CONSTRAINTS is not announced", v.ID)
	case !accessible(v.Topology, req.GetAccessibilityRequirements()):
		return status.Errorf(codes.ResourceExhausted, "volume %q is in %v: its snapshot cannot be accessible from where it is required", v.ID, v.Topology)
	}
	return nil
}

// newSnapshot takes a snapshot of a volume.
func (b *backend) newSnapshot(id string, v *volume, parameters map[string]string) *Snapshot {
	s := &Snapshot{ID: id, Size: v.Capacity, SourceVolume: v.ID, Parameters: maps.Clone(parameters), ReadyAfter: b.o.SnapshotReadyAfter, Created: b.now()}
	if b.o.SnapshotTopology {
		s.Topology = maps.Clone(v.Topology)
	}
	b.snapshots[id] = s
	return s
}

// now is the creation time of what is created now.
func (b *backend) now() time.Time {
	if b.o.NoCreationTime {
		return time.Time{}
	}
	return time.Now()
}

// DeleteSnapshot deletes a snapshot. It succeeds if the snapshot does not exist. A member of a group cannot be deleted alone.
func (d *Driver) DeleteSnapshot(_ context.Context, req *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := firstError(
		needController(d, csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT, "DeleteSnapshot"),
		needField("snapshot ID", req.GetSnapshotId()),
	); err != nil {
		return nil, err
	}
	if s := d.snapshots[req.GetSnapshotId()]; s != nil {
		if s.Group != "" {
			err := d.violation("DeleteSnapshot of %q, which is a member of the group snapshot %q", s.ID, s.Group)
			return nil, status.Error(codes.InvalidArgument, status.Convert(err).Message())
		}
		if err := d.checkUnused(s.ID); err != nil {
			return nil, err
		}
	}
	delete(d.snapshots, req.GetSnapshotId())
	return &csi.DeleteSnapshotResponse{}, nil
}

// checkUnused refuses the deletion of a snapshot from which a volume was restored, if the options say so.
func (b *backend) checkUnused(id string) error {
	if !b.o.RestoredInUse {
		return nil
	}
	for _, v := range b.volumes {
		if v.Source.GetSnapshot().GetSnapshotId() == id {
			return status.Errorf(codes.FailedPrecondition, "snapshot %q is in use: volume %q was restored from it", id, v.ID)
		}
	}
	return nil
}

// ListSnapshots lists snapshots in the order of their IDs, page by page: all, those of a volume, or one.
func (d *Driver) ListSnapshots(_ context.Context, req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := needController(d, csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS, "ListSnapshots"); err != nil {
		return nil, err
	}
	ids := slices.DeleteFunc(slices.Sorted(maps.Keys(d.snapshots)), func(id string) bool {
		volume := req.GetSourceVolumeId()
		return req.GetSnapshotId() != "" && id != req.GetSnapshotId() || volume != "" && d.snapshots[id].SourceVolume != volume
	})
	ids, next, err := page(ids, req.GetStartingToken(), int(req.GetMaxEntries()))
	if err != nil {
		return nil, err
	}
	reply := &csi.ListSnapshotsResponse{NextToken: next}
	for _, id := range ids {
		reply.Entries = append(reply.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: d.snapshots[id].report()})
	}
	return reply, nil
}

// GetSnapshot returns one snapshot.
func (d *Driver) GetSnapshot(_ context.Context, req *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := firstError(
		needController(d, csi.ControllerServiceCapability_RPC_GET_SNAPSHOT, "GetSnapshot"),
		needField("snapshot ID", req.GetSnapshotId()),
	); err != nil {
		return nil, err
	}
	s := d.snapshots[req.GetSnapshotId()]
	if s == nil {
		return nil, status.Errorf(codes.NotFound, "snapshot %q does not exist", req.GetSnapshotId())
	}
	return &csi.GetSnapshotResponse{Snapshot: s.report()}, nil
}

// report returns the snapshot as the specification describes it, and counts the answer.
func (s *Snapshot) report() *csi.Snapshot {
	out := &csi.Snapshot{
		SnapshotId: s.ID, SourceVolumeId: s.SourceVolume, SizeBytes: s.Size, CreationTime: timestampOf(s.Created),
		ReadyToUse: s.ReadyAfter == 0, GroupSnapshotId: s.Group,
	}
	if s.Topology != nil {
		out.AccessibleTopology = []*csi.Topology{{Segments: maps.Clone(s.Topology)}}
	}
	if s.ReadyAfter > 0 {
		s.ReadyAfter--
	}
	return out
}

func timestampOf(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
