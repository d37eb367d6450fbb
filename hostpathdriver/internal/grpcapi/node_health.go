package grpcapi

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// nodeHealth is the part that reports problems on the node.
type nodeHealth struct {
	service volume.NodeService
}

func (nodeHealth) announceNode() []nodeRPC {
	return []nodeRPC{csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH, csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH}
}

// NodeGetVolumeHealth reports problems of a volume on this node, also of one that
// could not be staged. A real driver checks the device and the state of its file
// system in the kernel, and never blocks on them.
func (n *nodeHealth) NodeGetVolumeHealth(ctx context.Context, req *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	id, err := parseID(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	health, err := n.service.Health(ctx, id, req.GetStagingTargetPath(), req.GetVolumePublishPath())
	if err != nil {
		return nil, statusOf(err)
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: healthOf(health)}, nil
}

// NodeGetStorageHealth reports problems of the connection from this node to the
// storage. A real driver checks its connections.
func (n *nodeHealth) NodeGetStorageHealth(ctx context.Context, _ *csi.NodeGetStorageHealthRequest) (*csi.NodeGetStorageHealthResponse, error) {
	answer := &csi.NodeGetStorageHealthResponse{}
	for _, c := range n.service.StorageHealth(ctx) {
		entry := &csi.NodeGetStorageHealthResponse_StorageBackendHealth{
			Status: csi.StorageHealthErrorType_STORAGE_DEGRADED, Reason: c.Reason, Message: c.Message,
		}
		if c.Severity == volume.Inaccessible {
			entry.Status = csi.StorageHealthErrorType_STORAGE_UNREACHABLE
		}
		answer.BackendHealth = append(answer.BackendHealth, entry)
	}
	return answer, nil
}
