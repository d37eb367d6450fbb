package grpcapi

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// controllerRPC shortens the type of controller capabilities.
type controllerRPC = csi.ControllerServiceCapability_RPC_Type

// ControllerConfig configures the Controller service.
type ControllerConfig struct {
	// Service does the work; it is decorated to be idempotent, and answers only
	// when contents are complete.
	Service volume.Service
	// Snapshots does so for snapshots.
	Snapshots volume.SnapshotService
	// ListSnapshots serves the call of that name.
	ListSnapshots bool
	// Attach serves ControllerPublishVolume and ControllerUnpublishVolume.
	Attach bool
	// Expansion serves ControllerExpandVolume; NodeExpansion says that the
	// nodes take part.
	Expansion, NodeExpansion bool
	// Condition adds the VolumeCondition of CSI v1.12 to answers.
	Condition bool
	// Modify serves ControllerModifyVolume.
	Modify bool
}

// Controller serves csi.v1.Controller.
type Controller struct {
	controllerRest
	controllerVolumes
	controllerList
	controllerCapacity
	controllerPublish
	controllerExpand
	controllerModify
	controllerHealth
	controllerSnapshots
	controllerClone

	parts []controllerPart
}

// controllerRest answers what no part serves. It is one level deeper than the
// parts, so that their methods win.
type controllerRest struct {
	csi.UnimplementedControllerServer
}

// controllerPart announces what its methods can do.
type controllerPart interface {
	announceController() []controllerRPC
}

var _ csi.ControllerServer = (*Controller)(nil)

// NewController returns the service.
func NewController(cfg ControllerConfig) *Controller {
	c := &Controller{
		controllerVolumes: controllerVolumes{service: cfg.Service, sources: []sourceFrom{
			fromSnapshot,
			fromVolume,
		}},
		controllerList:     controllerList{service: cfg.Service, attach: cfg.Attach, condition: cfg.Condition},
		controllerCapacity: controllerCapacity{service: cfg.Service},
		controllerPublish:  controllerPublish{service: cfg.Service, attach: cfg.Attach},
		controllerExpand:   controllerExpand{service: cfg.Service, enabled: cfg.Expansion, onNode: cfg.NodeExpansion},
		controllerModify:   controllerModify{service: cfg.Service, enabled: cfg.Modify},
		controllerHealth:   controllerHealth{service: cfg.Service},

		controllerSnapshots: controllerSnapshots{service: cfg.Snapshots, list: cfg.ListSnapshots},
	}
	c.parts = []controllerPart{
		&c.controllerVolumes,
		&c.controllerList,
		&c.controllerCapacity,
		&c.controllerPublish,
		&c.controllerExpand,
		&c.controllerModify,
		&c.controllerHealth,
		&c.controllerSnapshots,
		&c.controllerClone,
	}
	return c
}

// Register adds the service to a server.
func (c *Controller) Register(r grpc.ServiceRegistrar) {
	csi.RegisterControllerServer(r, c)
}

// ControllerGetCapabilities announces what the parts announce. A real driver
// does the same.
func (c *Controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	answer := &csi.ControllerGetCapabilitiesResponse{}
	for _, part := range c.parts {
		for _, rpc := range part.announceController() {
			answer.Capabilities = append(answer.Capabilities, &csi.ControllerServiceCapability{
				Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: rpc}},
			})
		}
	}
	return answer, nil
}
