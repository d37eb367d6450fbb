package driverkit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// GroupSnapshotter makes snapshots of several volumes at one point in time.
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

// group serves csi.v1.GroupController. It shares the locks of the controller, as its calls are about the same volumes.
type group struct {
	csi.UnimplementedGroupControllerServer
	*controller
}

// GroupControllerGetCapabilities announces the only capability that exists.
func (g *group) GroupControllerGetCapabilities(context.Context, *csi.GroupControllerGetCapabilitiesRequest) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	return &csi.GroupControllerGetCapabilitiesResponse{Capabilities: []*csi.GroupControllerServiceCapability{{
		Type: &csi.GroupControllerServiceCapability_Rpc{Rpc: &csi.GroupControllerServiceCapability_RPC{
			Type: csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT,
		}},
	}}}, nil
}

// CreateVolumeGroupSnapshot makes snapshots of several volumes at one point in time, or finds those of that name
// (CSI v1.13, "CreateVolumeGroupSnapshot").
func (g *group) CreateVolumeGroupSnapshot(ctx context.Context, req *csi.CreateVolumeGroupSnapshotRequest) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	volumes := req.GetSourceVolumeIds()
	op := operation{name: "group snapshot " + req.GetName(), secrets: req.GetSecrets(), invalid: errors.Join(checkName("name", req.GetName()), requiredList("source_volume_ids", volumes))}
	for _, id := range volumes {
		op.sources = append(op.sources, copied(volumeKey(id)))
	}
	return perform(ctx, g.kit, op, func(ctx context.Context) (*csi.CreateVolumeGroupSnapshotResponse, error) {
		made, err := g.driver.GroupSnapshotter.CreateGroupSnapshot(ctx, &CreateGroupSnapshotRequest{
			Name: req.GetName(), Volumes: volumes, Parameters: req.GetParameters(), Secrets: req.GetSecrets(),
		})
		if err != nil {
			return nil, uncertain(err)
		}
		if of := made.volumes(); !slices.Equal(of, slices.Compact(slices.Sorted(slices.Values(volumes)))) {
			return nil, fmt.Errorf("group snapshot %q exists as %q, of volumes %q: %w", req.GetName(), made.ID, of, ErrExists)
		}
		return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: made.message()}, nil
	})
}

// requiredList refuses an empty list, and an empty entry.
func requiredList(field string, list []string) error {
	if len(list) == 0 {
		return fmt.Errorf("%s: at least one is required: %w", field, ErrInvalid)
	}
	for _, entry := range list {
		if err := required(field, entry); err != nil {
			return err
		}
	}
	return nil
}

// volumes are the sources of the group's snapshots, sorted.
func (g *GroupSnapshot) volumes() []string {
	ids := make([]string, 0, len(g.Snapshots))
	for _, s := range g.Snapshots {
		ids = append(ids, s.Volume)
	}
	slices.Sort(ids)
	return ids
}

func (g *GroupSnapshot) message() *csi.VolumeGroupSnapshot {
	answer := &csi.VolumeGroupSnapshot{GroupSnapshotId: g.ID, CreationTime: timestamppb.New(g.Created), ReadyToUse: g.Ready}
	for _, s := range g.Snapshots {
		one := s.message()
		one.GroupSnapshotId = g.ID
		answer.Snapshots = append(answer.Snapshots, one)
	}
	return answer
}

// onGroup is the operation of a call that changes one group.
func onGroup(id string, members []string, secrets Secrets) operation {
	op := operation{ids: []string{"group snapshot " + id}, secrets: secrets, invalid: errors.Join(required("group_snapshot_id", id), checkMemberIDs(members))}
	for _, member := range members {
		op.ids = append(op.ids, snapshotKey(member))
	}
	return op
}

func checkMemberIDs(members []string) error {
	return checkCharacters("snapshot_ids", strings.Join(members, ","))
}

// DeleteVolumeGroupSnapshot deletes a group and its snapshots; one that does not exist is deleted (CSI v1.13, "DeleteVolumeGroupSnapshot").
func (g *group) DeleteVolumeGroupSnapshot(ctx context.Context, req *csi.DeleteVolumeGroupSnapshotRequest) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	op := onGroup(req.GetGroupSnapshotId(), req.GetSnapshotIds(), req.GetSecrets())
	return perform(ctx, g.kit, op, func(ctx context.Context) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
		found, err := g.driver.GroupSnapshotter.GetGroupSnapshot(ctx, &GetGroupSnapshotRequest{ID: req.GetGroupSnapshotId(), Secrets: req.GetSecrets()})
		if err == nil {
			err = found.checkMembers(req.GetSnapshotIds(), true)
		}
		if err == nil {
			err = g.driver.GroupSnapshotter.DeleteGroupSnapshot(ctx, &DeleteGroupSnapshotRequest{ID: req.GetGroupSnapshotId(), Secrets: req.GetSecrets()})
		}
		return &csi.DeleteVolumeGroupSnapshotResponse{}, ignoreNotFound(err, req.GetGroupSnapshotId())
	})
}

// checkMembers refuses snapshots that are not those of the group (CSI v1.13, "DeleteVolumeGroupSnapshot", INVALID_ARGUMENT). Of a group that is being
// deleted some may be gone, by an earlier call.
func (g *GroupSnapshot) checkMembers(ids []string, deleting bool) error {
	own := make([]string, 0, len(g.Snapshots))
	for _, s := range g.Snapshots {
		own = append(own, s.ID)
	}
	slices.Sort(own)
	sent := slices.Sorted(slices.Values(ids))
	unsent := slices.ContainsFunc(own, func(id string) bool { return !slices.Contains(sent, id) })
	if unsent || !deleting && !slices.Equal(own, sent) {
		return fmt.Errorf("snapshot_ids: %q, but group snapshot %q has %q: %w", sent, g.ID, own, ErrInvalid)
	}
	return nil
}

// GetVolumeGroupSnapshot returns a group with its snapshots (CSI v1.13, "GetVolumeGroupSnapshot").
func (g *group) GetVolumeGroupSnapshot(ctx context.Context, req *csi.GetVolumeGroupSnapshotRequest) (*csi.GetVolumeGroupSnapshotResponse, error) {
	op := operation{secrets: req.GetSecrets(), invalid: errors.Join(required("group_snapshot_id", req.GetGroupSnapshotId()), checkMemberIDs(req.GetSnapshotIds()))}
	return perform(ctx, g.kit, op, func(ctx context.Context) (*csi.GetVolumeGroupSnapshotResponse, error) {
		found, err := g.driver.GroupSnapshotter.GetGroupSnapshot(ctx, &GetGroupSnapshotRequest{ID: req.GetGroupSnapshotId(), Secrets: req.GetSecrets()})
		if err != nil {
			return nil, err
		}
		if err := found.checkMembers(req.GetSnapshotIds(), false); err != nil {
			return nil, err
		}
		return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: found.message()}, nil
	})
}
