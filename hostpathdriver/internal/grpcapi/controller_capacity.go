package grpcapi

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// controllerCapacity is the part that reports free space.
type controllerCapacity struct {
	service volume.Service
}

func (controllerCapacity) announceController() []controllerRPC {
	return []controllerRPC{csi.ControllerServiceCapability_RPC_GET_CAPACITY}
}

// GetCapacity reports the free space for volumes with these parameters in this
// segment. A real driver asks its storage system, and answers zero for a
// segment that it does not serve.
func (c *controllerCapacity) GetCapacity(ctx context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	wanted := &volume.CapacityRequest{Parameters: req.GetParameters()}
	if t := req.GetAccessibleTopology(); t != nil {
		wanted.Topology = t.GetSegments()
	}
	if len(req.GetVolumeCapabilities()) > 0 {
		var err error
		if wanted.Capabilities, err = capabilitiesFrom(req.GetVolumeCapabilities()); err != nil {
			return nil, err
		}
	}
	capacity, err := c.service.Capacity(ctx, wanted)
	if err != nil {
		return nil, statusOf(err)
	}
	return &csi.GetCapacityResponse{
		AvailableCapacity: capacity.Available,
		MaximumVolumeSize: wrapperspb.Int64(capacity.Largest),
	}, nil
}
