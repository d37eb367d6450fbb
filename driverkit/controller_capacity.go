package driverkit

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// GetCapacity reports the free space (CSI v1.13, "GetCapacity").
func (c *controller) GetCapacity(ctx context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	reporter := optional[CapacityReporter](c.kit)
	if reporter == nil {
		return nil, unimplemented("GetCapacity")
	}
	wanted := &CapacityRequest{Parameters: req.GetParameters(), Topology: req.GetAccessibleTopology().GetSegments()}
	var err error
	if len(req.GetVolumeCapabilities()) > 0 {
		wanted.Capabilities, err = c.capabilitiesOf(req.GetVolumeCapabilities())
	}
	return perform(ctx, c.kit, operation{invalid: err}, func(ctx context.Context) (*csi.GetCapacityResponse, error) {
		capacity, err := reporter.Capacity(ctx, wanted)
		if err != nil {
			return nil, err
		}
		answer := &csi.GetCapacityResponse{AvailableCapacity: capacity.Available}
		if capacity.LargestVolume > 0 {
			answer.MaximumVolumeSize = wrapperspb.Int64(capacity.LargestVolume)
		}
		if capacity.SmallestVolume > 0 {
			answer.MinimumVolumeSize = wrapperspb.Int64(capacity.SmallestVolume)
		}
		return answer, nil
	})
}
