package grpcapi

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// controllerModify is the part that changes the parameters of volumes.
type controllerModify struct {
	service volume.Service
	// enabled is false when there are no parameters to change.
	enabled bool
}

func (c controllerModify) announceController() []controllerRPC {
	if !c.enabled {
		return nil
	}
	return []controllerRPC{csi.ControllerServiceCapability_RPC_MODIFY_VOLUME}
}

// ControllerModifyVolume sets mutable parameters, all or none of them. Nodes apply
// them to volumes in use. A real driver changes the volume in its storage system: its
// speed, its class of media.
func (c *controllerModify) ControllerModifyVolume(ctx context.Context, req *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	if !c.enabled {
		return nil, disabled("ControllerModifyVolume", "enable-controller-modify-volume")
	}
	id, err := parseID(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if err := c.service.Modify(ctx, id, req.GetMutableParameters()); err != nil {
		return nil, statusOf(err)
	}
	return &csi.ControllerModifyVolumeResponse{}, nil
}
