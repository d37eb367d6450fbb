package grpcapi

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// GroupConfig configures the GroupController service.
type GroupConfig struct {
	// Service does the work; it is decorated to be idempotent, and answers only
	// when contents are complete.
	Service volume.GroupService
}

// Group serves csi.v1.GroupController.
type Group struct {
	csi.UnimplementedGroupControllerServer

	cfg GroupConfig
}

var _ csi.GroupControllerServer = (*Group)(nil)

// NewGroup returns the service.
func NewGroup(cfg GroupConfig) *Group {
	return &Group{cfg: cfg}
}

// Register adds the service to a server.
func (g *Group) Register(r grpc.ServiceRegistrar) {
	csi.RegisterGroupControllerServer(r, g)
}

// GroupControllerGetCapabilities announces the only capability that there is.
// A real driver does the same.
func (g *Group) GroupControllerGetCapabilities(context.Context, *csi.GroupControllerGetCapabilitiesRequest) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	return &csi.GroupControllerGetCapabilitiesResponse{Capabilities: []*csi.GroupControllerServiceCapability{{
		Type: &csi.GroupControllerServiceCapability_Rpc{Rpc: &csi.GroupControllerServiceCapability_RPC{
			Type: csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT,
		}},
	}}}, nil
}

// CreateVolumeGroupSnapshot makes snapshots of several volumes at one moment,
// or finds those of that name. A real driver asks its storage system for a
// consistency group, and refuses volumes that cannot be in one.
func (g *Group) CreateVolumeGroupSnapshot(ctx context.Context, req *csi.CreateVolumeGroupSnapshotRequest) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	if err := checkName(req.GetName()); err != nil {
		return nil, err
	}
	sources, err := parseFields("source_volume_ids", req.GetSourceVolumeIds())
	if err != nil {
		return nil, err
	}
	if len(sources) == 0 {
		return nil, status.Error(codes.InvalidArgument, "source_volume_ids: at least one is required")
	}
	created, err := g.cfg.Service.CreateGroup(ctx, &volume.GroupRequest{Name: req.GetName(), Sources: sources, Parameters: req.GetParameters()})
	if err != nil {
		return nil, statusOf(err)
	}
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: groupOf(created)}, nil
}

// DeleteVolumeGroupSnapshot deletes a group and its snapshots; one that does
// not exist is deleted. A real driver does the same.
func (g *Group) DeleteVolumeGroupSnapshot(ctx context.Context, req *csi.DeleteVolumeGroupSnapshotRequest) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	id, members, err := membersFrom(req)
	if err != nil {
		return nil, err
	}
	if err := g.cfg.Service.DeleteGroup(ctx, id, members); err != nil {
		return nil, statusOf(err)
	}
	return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
}

// GetVolumeGroupSnapshot returns a group with its snapshots. A real driver asks
// its storage system, not a cache.
func (g *Group) GetVolumeGroupSnapshot(ctx context.Context, req *csi.GetVolumeGroupSnapshotRequest) (*csi.GetVolumeGroupSnapshotResponse, error) {
	id, members, err := membersFrom(req)
	if err != nil {
		return nil, err
	}
	found, err := g.cfg.Service.GetGroup(ctx, id, members)
	if err != nil {
		return nil, statusOf(err)
	}
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: groupOf(found)}, nil
}

// membersFrom converts the fields that name a group. An empty list is compared
// with its snapshots as any other one.
func membersFrom(req interface {
	GetGroupSnapshotId() string
	GetSnapshotIds() []string
},
) (volume.ID, []volume.ID, error) {
	id, err := parseField("group_snapshot_id", req.GetGroupSnapshotId())
	if err != nil {
		return "", nil, err
	}
	members, err := parseFields("snapshot_ids", req.GetSnapshotIds())
	return id, members, err
}

func groupOf(g *volume.Group) *csi.VolumeGroupSnapshot {
	answer := &csi.VolumeGroupSnapshot{
		GroupSnapshotId: string(g.ID),
		CreationTime:    timestamppb.New(g.Created),
		ReadyToUse:      !g.Filling(),
		Snapshots:       make([]*csi.Snapshot, 0, len(g.Snapshots)),
	}
	for _, s := range g.Snapshots {
		answer.Snapshots = append(answer.Snapshots, snapshotOf(s))
	}
	return answer
}
