package driverkit

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// CapacityRequest asks for free space.
type CapacityRequest struct {
	// Capabilities are those of the wanted volumes; none means any.
	Capabilities []Capability
	// Parameters are those of a StorageClass; they may be empty.
	Parameters map[string]string
	// Topology is the segment in question; nil means anywhere.
	Topology Segments
}

// Capacity is free space in bytes.
type Capacity struct {
	// Available is how much new volumes can have in total.
	Available int64
	// LargestVolume and SmallestVolume are the limits of the size of one volume; 0 means that there is none.
	LargestVolume, SmallestVolume int64
}

// GetCapacity reports the free space (CSI v1.13, "GetCapacity").
func (c *controller) GetCapacity(ctx context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	if c.driver.Capacity == nil {
		return nil, unimplemented("GetCapacity")
	}
	wanted := &CapacityRequest{Parameters: req.GetParameters(), Topology: req.GetAccessibleTopology().GetSegments()}
	var err error
	if len(req.GetVolumeCapabilities()) > 0 {
		wanted.Capabilities, err = c.capabilitiesOf(req.GetVolumeCapabilities())
	}
	return perform(ctx, c.kit, operation{invalid: err}, func(ctx context.Context) (*csi.GetCapacityResponse, error) {
		capacity, err := c.driver.Capacity(ctx, wanted)
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
