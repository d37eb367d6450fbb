package grpcapi

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// nodeExpand is the part that expands devices and file systems.
type nodeExpand struct {
	service volume.NodeService
	// enabled is false when the nodes do not take part.
	enabled bool
}

func (n nodeExpand) announceNode() []nodeRPC {
	if !n.enabled {
		return nil
	}
	return []nodeRPC{csi.NodeServiceCapability_RPC_EXPAND_VOLUME}
}

// NodeExpandVolume makes the device as large as its file; a directory needs
// nothing. A real driver lets the kernel rescan the device, and expands the file
// system on it.
func (n *nodeExpand) NodeExpandVolume(ctx context.Context, req *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	if !n.enabled {
		return nil, disabled("NodeExpandVolume", "disable-node-expansion")
	}
	id, err := parseID(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if err := required("volume_path", req.GetVolumePath()); err != nil {
		return nil, err
	}
	capability, err := optionalCapabilityFrom(req.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	size, err := n.service.Expand(ctx, &volume.NodeExpandRequest{
		ID: id, Path: req.GetVolumePath(), Range: rangeFrom(req.GetCapacityRange()), Capability: capability,
	})
	if err != nil {
		return nil, statusOf(err)
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: size}, nil
}
