package grpcapi

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// nodeStats is the part that measures volumes.
type nodeStats struct {
	service volume.NodeService
	// condition adds the VolumeCondition of CSI v1.12.
	condition bool
}

func (n nodeStats) announceNode() []nodeRPC {
	announced := []nodeRPC{csi.NodeServiceCapability_RPC_GET_VOLUME_STATS}
	if n.condition {
		announced = append(announced, nodeCondition)
	}
	return announced
}

// NodeGetVolumeStats reports the usage of a volume. A real driver with a file
// system per volume asks statfs(2); this one shares a file system between
// volumes and adds up the volume's own files.
func (n *nodeStats) NodeGetVolumeStats(ctx context.Context, req *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	id, err := parseID(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if err := required("volume_path", req.GetVolumePath()); err != nil {
		return nil, err
	}
	stats, err := n.service.Stats(ctx, id, req.GetVolumePath())
	if err != nil {
		return nil, statusOf(err)
	}
	answer := &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{usageOf(csi.VolumeUsage_BYTES, stats.Bytes)}}
	if stats.Inodes != nil {
		answer.Usage = append(answer.Usage, usageOf(csi.VolumeUsage_INODES, *stats.Inodes))
	}
	if n.condition {
		health, err := n.service.Health(ctx, id, req.GetStagingTargetPath(), req.GetVolumePath())
		if err != nil {
			return nil, statusOf(err)
		}
		setCondition(answer, health.Conditions)
	}
	return answer, nil
}

func usageOf(unit csi.VolumeUsage_Unit, u volume.Usage) *csi.VolumeUsage {
	return &csi.VolumeUsage{Unit: unit, Total: u.Total, Used: u.Used, Available: u.Available}
}
