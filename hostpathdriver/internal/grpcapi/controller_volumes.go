package grpcapi

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// maxName is the greatest length of a volume name in bytes (CSI v1.13, "Size
// Limits").
const maxName = 128

// controllerVolumes is the part that makes, deletes and validates volumes.
type controllerVolumes struct {
	service volume.Service
}

func (controllerVolumes) announceController() []controllerRPC {
	return []controllerRPC{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}
}

// CreateVolume makes a volume, or finds the one of that name. A real driver
// asks its storage system for it, with the name as the idempotency key, and
// returns only when the volume can be used.
func (c *controllerVolumes) CreateVolume(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if err := checkCreate(req); err != nil {
		return nil, err
	}
	capabilities, err := capabilitiesFrom(req.GetVolumeCapabilities())
	if err != nil {
		return nil, err
	}
	created, err := c.service.Create(ctx, &volume.CreateRequest{
		Name:         req.GetName(),
		Range:        rangeFrom(req.GetCapacityRange()),
		Parameters:   req.GetParameters(),
		Mutable:      req.GetMutableParameters(),
		Capabilities: capabilities,
		Requirements: requirementsFrom(req.GetAccessibilityRequirements()),
	})
	if err != nil {
		return nil, statusOf(err)
	}
	return &csi.CreateVolumeResponse{Volume: volumeOf(created)}, nil
}

func checkCreate(req *csi.CreateVolumeRequest) error {
	if err := required("name", req.GetName()); err != nil {
		return err
	}
	switch {
	case len(req.GetName()) > maxName:
		return status.Errorf(codes.InvalidArgument, "name: %d bytes, must be at most %d", len(req.GetName()), maxName)
	case req.GetVolumeContentSource() != nil:
		return status.Error(codes.InvalidArgument, "volume_content_source: neither snapshots nor clones are advertised")
	}
	return nil
}

// DeleteVolume deletes a volume and its contents; one that does not exist is
// deleted. A real driver deletes it in its storage system, and must not
// answer OK before the space is given back or sure to be.
func (c *controllerVolumes) DeleteVolume(ctx context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	id, err := parseID(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if err := c.service.Delete(ctx, id); err != nil {
		return nil, statusOf(err)
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// ValidateVolumeCapabilities confirms what the volume can do. An answer
// without confirmation says why not. A real driver compares with the
// properties of the volume in its storage system.
func (c *controllerVolumes) ValidateVolumeCapabilities(ctx context.Context, req *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	id, err := parseID(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	capabilities, err := capabilitiesFrom(req.GetVolumeCapabilities())
	if err != nil {
		return nil, err
	}
	found, err := c.service.Get(ctx, id)
	if err != nil {
		return nil, statusOf(err)
	}
	if objection := c.objection(req, found, capabilities); objection != "" {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: objection}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext:      req.GetVolumeContext(),
		VolumeCapabilities: req.GetVolumeCapabilities(),
		Parameters:         req.GetParameters(),
		MutableParameters:  req.GetMutableParameters(),
	}}, nil
}

// objection says why a volume is not confirmed; empty when it is.
func (c *controllerVolumes) objection(req *csi.ValidateVolumeCapabilitiesRequest, found *volume.Volume, capabilities []volume.Capability) string {
	if err := c.service.Support().CheckCapabilities(found.Form(), capabilities); err != nil {
		return err.Error()
	}
	for _, one := range capabilities {
		if err := found.CheckAccess(one); err != nil {
			return err.Error()
		}
	}
	switch {
	case !sameContext(req.GetVolumeContext()):
		return "volume_context: differs from that of the volume"
	case !sameParameters(found, req.GetParameters()):
		return "parameters: differ from those of the volume"
	case !found.Modified(req.GetMutableParameters()):
		return "mutable_parameters: differ from those of the volume"
	}
	return ""
}
