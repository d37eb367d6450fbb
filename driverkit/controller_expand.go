package driverkit

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// ExpandRequest asks for a larger volume.
type ExpandRequest struct {
	// ID is Volume.ID of Create.
	ID string
	// Size is the range that the new size must be in; see Range.Choose.
	Size Range
	// Capability is how the volume is used; nil where the CO does not say.
	Capability *Capability
	// Secrets are those for expansion.
	Secrets Secrets
}

// Expanded is the result of Expand.
type Expanded struct {
	// Size is the new size in bytes.
	Size int64
	// OnNode says that nodes that use the volume have to call NodeExpandVolume: true for devices with a file system.
	OnNode bool
}

// ModifyRequest asks for other parameters.
type ModifyRequest struct {
	// ID is Volume.ID of Create.
	ID string
	// Parameters are all of the VolumeAttributesClass.
	Parameters map[string]string
	// Secrets are those for modification.
	Secrets Secrets
}

// Modified is the result of Modify.
type Modified struct{}

// ControllerExpandVolume makes a volume larger (CSI v1.13, "ControllerExpandVolume").
func (c *controller) ControllerExpandVolume(ctx context.Context, req *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	if c.driver.Expand == nil {
		return nil, unimplemented("ControllerExpandVolume")
	}
	wanted := &ExpandRequest{ID: req.GetVolumeId(), Secrets: req.GetSecrets()}
	op := onSource(req.GetVolumeId(), req.GetSecrets(), c.readExpand(req, wanted))
	return perform(ctx, c.kit, op, func(ctx context.Context) (*csi.ControllerExpandVolumeResponse, error) {
		expanded, err := c.driver.Expand(ctx, wanted)
		if err != nil {
			return nil, err
		}
		if !wanted.Size.Holds(expanded.Size) {
			return nil, fmt.Errorf("volume %q: has %d bytes after its expansion, outside of required_bytes %d and limit_bytes %d: %w",
				wanted.ID, expanded.Size, wanted.Size.Required, wanted.Size.Limit, ErrOutOfRange)
		}
		return &csi.ControllerExpandVolumeResponse{CapacityBytes: expanded.Size, NodeExpansionRequired: expanded.OnNode && !c.Support.NoNodeExpansion}, nil
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
	if c.driver.Modify == nil {
		return nil, unimplemented("ControllerModifyVolume")
	}
	op := onVolume(req.GetVolumeId(), req.GetSecrets())
	return perform(ctx, c.kit, op, func(ctx context.Context) (*csi.ControllerModifyVolumeResponse, error) {
		_, err := c.driver.Modify(ctx, &ModifyRequest{ID: req.GetVolumeId(), Parameters: req.GetMutableParameters(), Secrets: req.GetSecrets()})
		return &csi.ControllerModifyVolumeResponse{}, err
	})
}
