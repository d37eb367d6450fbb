package driverkit

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// ControllerExpandVolume makes a volume larger (CSI v1.13, "ControllerExpandVolume").
func (c *controller) ControllerExpandVolume(ctx context.Context, req *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	expander := optional[Expander](c.kit)
	if expander == nil {
		return nil, unimplemented("ControllerExpandVolume")
	}
	wanted := &ExpandRequest{ID: req.GetVolumeId(), Secrets: req.GetSecrets()}
	op := onSource(req.GetVolumeId(), req.GetSecrets(), c.readExpand(req, wanted))
	return perform(ctx, c.kit, op, func(ctx context.Context) (*csi.ControllerExpandVolumeResponse, error) {
		expanded, err := expander.Expand(ctx, wanted)
		if err != nil {
			return nil, err
		}
		if !wanted.Size.Holds(expanded.Size) {
			return nil, fmt.Errorf("volume %q: has %d bytes after its expansion, outside of required_bytes %d and limit_bytes %d: %w",
				wanted.ID, expanded.Size, wanted.Size.Required, wanted.Size.Limit, ErrOutOfRange)
		}
		return &csi.ControllerExpandVolumeResponse{CapacityBytes: expanded.Size, NodeExpansionRequired: expanded.OnNode}, nil
	})
}

// readExpand completes wanted from the request.
func (c *controller) readExpand(req *csi.ControllerExpandVolumeRequest, wanted *ExpandRequest) error {
	if req.GetCapacityRange() == nil {
		return fmt.Errorf("capacity_range: is required: %w", ErrInvalid)
	}
	var sizeErr, capabilityErr error
	wanted.Size, sizeErr = rangeOf(req.GetCapacityRange())
	wanted.Capability, capabilityErr = c.optionalCapabilityOf(req.GetVolumeCapability())
	return errors.Join(sizeErr, capabilityErr)
}

// ControllerModifyVolume sets mutable parameters (CSI v1.13, "ControllerModifyVolume").
func (c *controller) ControllerModifyVolume(ctx context.Context, req *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	modifier := optional[Modifier](c.kit)
	if modifier == nil {
		return nil, unimplemented("ControllerModifyVolume")
	}
	op := onVolume(req.GetVolumeId(), req.GetSecrets())
	return perform(ctx, c.kit, op, func(ctx context.Context) (*csi.ControllerModifyVolumeResponse, error) {
		return &csi.ControllerModifyVolumeResponse{}, modifier.Modify(ctx, &ModifyRequest{
			ID: req.GetVolumeId(), Parameters: req.GetMutableParameters(), Secrets: req.GetSecrets(),
		})
	})
}
