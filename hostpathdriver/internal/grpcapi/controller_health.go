package grpcapi

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// controllerHealth is the part that reports problems of volumes.
type controllerHealth struct {
	service volume.Service
}

func (controllerHealth) announceController() []controllerRPC {
	return []controllerRPC{
		csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH,
		csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH,
	}
}

// ControllerGetVolumeHealth reports problems of a volume. A real driver asks its
// storage system, and reports a condition until it is over.
func (c *controllerHealth) ControllerGetVolumeHealth(ctx context.Context, req *csi.ControllerGetVolumeHealthRequest) (*csi.ControllerGetVolumeHealthResponse, error) {
	id, err := parseID(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	health, err := c.service.Health(ctx, id)
	if err != nil {
		return nil, statusOf(err)
	}
	return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: healthOf(health)}, nil
}

// ControllerListVolumeHealth returns a page of the volumes that have problems. A
// real driver asks its storage system for these volumes only.
func (c *controllerHealth) ControllerListVolumeHealth(ctx context.Context, req *csi.ControllerListVolumeHealthRequest) (*csi.ControllerListVolumeHealthResponse, error) {
	if req.GetMaxEntries() < 0 {
		return nil, status.Errorf(codes.InvalidArgument, "max_entries: %d, must not be negative", req.GetMaxEntries())
	}
	page, err := c.service.ListHealth(ctx, volume.ListRequest{Token: req.GetStartingToken(), Max: int(req.GetMaxEntries())})
	if err != nil {
		return nil, statusOf(err)
	}
	answer := &csi.ControllerListVolumeHealthResponse{NextToken: page.Next}
	for _, health := range page.Entries {
		answer.Entries = append(answer.Entries, healthOf(health))
	}
	return answer, nil
}
