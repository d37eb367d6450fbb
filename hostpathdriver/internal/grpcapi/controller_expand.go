package grpcapi

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// controllerExpand is the part that makes volumes larger.
type controllerExpand struct {
	service volume.Service
	// enabled is false when volumes keep their size.
	enabled bool
	// onNode is false when the nodes do not take part.
	onNode bool
}

func (c controllerExpand) announceController() []controllerRPC {
	if !c.enabled {
		return nil
	}
	return []controllerRPC{csi.ControllerServiceCapability_RPC_EXPAND_VOLUME}
}

// ControllerExpandVolume makes a volume larger, in use or not. A real driver
// does so in its storage system, and reports whether a node has to do the rest:
// the device, or the file system on it.
func (c *controllerExpand) ControllerExpandVolume(ctx context.Context, req *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	if !c.enabled {
		return nil, disabled("ControllerExpandVolume", "disable-controller-expansion")
	}
	id, err := parseID(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if req.GetCapacityRange() == nil {
		return nil, status.Error(codes.InvalidArgument, "capacity_range: is required")
	}
	capability, err := optionalCapabilityFrom(req.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	expanded, err := c.service.Expand(ctx, &volume.ExpandRequest{ID: id, Range: rangeFrom(req.GetCapacityRange()), Capability: capability})
	if err != nil {
		return nil, statusOf(err)
	}
	return &csi.ControllerExpandVolumeResponse{
		CapacityBytes: expanded.Capacity, NodeExpansionRequired: c.onNode && expanded.ExpandOnNode(),
	}, nil
}
