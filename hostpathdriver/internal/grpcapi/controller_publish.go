package grpcapi

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// controllerPublish is the part that attaches volumes to nodes.
type controllerPublish struct {
	service volume.Service
	attach  bool
}

func (c controllerPublish) announceController() []controllerRPC {
	if !c.attach {
		return nil
	}
	return []controllerRPC{
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_READONLY,
	}
}

// ControllerPublishVolume attaches a volume to a node. A real driver makes
// the volume reachable from the node (a disk is attached, an export is
// opened), for reading only if it says so, and returns what the node needs to
// find it as publish_context.
func (c *controllerPublish) ControllerPublishVolume(ctx context.Context, req *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	if !c.attach {
		return nil, disabled("ControllerPublishVolume", "enable-attach")
	}
	id, err := parseID(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if err := required("node_id", req.GetNodeId()); err != nil {
		return nil, err
	}
	capability, err := capabilityFrom(req.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	_, err = c.service.Publish(ctx, &volume.PublishRequest{
		ID: id, Node: req.GetNodeId(), ReadOnly: req.GetReadonly(), Capability: capability,
	})
	if err != nil {
		return nil, statusOf(err)
	}
	return &csi.ControllerPublishVolumeResponse{}, nil
}

// ControllerUnpublishVolume detaches a volume from a node, or from all nodes.
// It works for a node that is gone: that is when it matters most. A real
// driver must be sure that the node can no longer write before it answers OK.
func (c *controllerPublish) ControllerUnpublishVolume(ctx context.Context, req *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	if !c.attach {
		return nil, disabled("ControllerUnpublishVolume", "enable-attach")
	}
	id, err := parseID(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if err := c.service.Unpublish(ctx, id, req.GetNodeId()); err != nil {
		return nil, statusOf(err)
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}
