package grpcapi

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// controllerVolumes is the part that makes, deletes and validates volumes.
type controllerVolumes struct {
	service volume.Service
	// sources are what a volume can be made of; each part that brings one has
	// a line.
	sources []sourceFrom
}

// sourceFrom converts one kind of content source; false for another kind.
type sourceFrom func(*csi.VolumeContentSource) (volume.Source, bool, error)

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
	if err := checkName(req.GetName()); err != nil {
		return nil, err
	}
	source, err := c.sourceOf(req.GetVolumeContentSource())
	if err != nil {
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
		Source:       source,
	})
	if err != nil {
		return nil, statusOf(err)
	}
	return &csi.CreateVolumeResponse{Volume: volumeOf(created)}, nil
}

// sourceOf converts what a volume is to be made of; nil for an empty volume.
func (c *controllerVolumes) sourceOf(from *csi.VolumeContentSource) (*volume.Source, error) {
	if from == nil {
		return nil, nil
	}
	for _, convert := range c.sources {
		if source, ok, err := convert(from); ok {
			return &source, err
		}
	}
	return nil, status.Errorf(codes.InvalidArgument, "volume_content_source: type %T is not served", from.GetType())
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
