package grpcapi

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// nodeStage is the part that mounts a volume once per node.
type nodeStage struct {
	service volume.NodeService
}

func (nodeStage) announceNode() []nodeRPC {
	return []nodeRPC{csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME}
}

// NodeStageVolume mounts a volume at a path that all its pods share. A real
// driver finds the device, makes a file system if there is none, and mounts
// it.
func (n *nodeStage) NodeStageVolume(ctx context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	id, err := parseID(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if err := required("staging_target_path", req.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	capability, err := nodeCapabilityFrom(req.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	err = n.service.Stage(ctx, &volume.StageRequest{
		ID: id, Stage: volume.Stage{Path: req.GetStagingTargetPath(), Capability: capability},
	})
	if err != nil {
		return nil, statusOf(err)
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

// NodeUnstageVolume undoes NodeStageVolume; a volume that is not staged is no error.
// A real driver flushes and unmounts, and detaches the device.
func (n *nodeStage) NodeUnstageVolume(ctx context.Context, req *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	id, err := parseID(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if err := required("staging_target_path", req.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	if err := n.service.Unstage(ctx, id, req.GetStagingTargetPath()); err != nil {
		return nil, statusOf(err)
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}
