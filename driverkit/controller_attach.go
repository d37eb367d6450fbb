package driverkit

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// unimplemented is the answer of a call whose optional interface the Backend does not implement.
func unimplemented(method string) error {
	return status.Errorf(codes.Unimplemented, "%s: the driver does not announce it", method)
}

// ControllerPublishVolume attaches a volume to a node (CSI v1.13, "ControllerPublishVolume").
func (c *controller) ControllerPublishVolume(ctx context.Context, req *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	attacher := optional[Attacher](c.kit)
	if attacher == nil {
		return nil, unimplemented("ControllerPublishVolume")
	}
	capability, err := c.capabilityOf(req.GetVolumeCapability())
	op := onVolume(req.GetVolumeId(), req.GetSecrets(), required("node_id", req.GetNodeId()), err)
	return perform(ctx, c.kit, op, func(ctx context.Context) (*csi.ControllerPublishVolumeResponse, error) {
		found, err := c.backend.Get(ctx, &GetRequest{ID: req.GetVolumeId(), Secrets: req.GetSecrets()})
		if err != nil {
			return nil, err
		}
		if err := found.checkAttach(req.GetNodeId(), capability); err != nil {
			return nil, err
		}
		publishContext, err := attacher.Attach(ctx, &AttachRequest{
			ID: req.GetVolumeId(), Node: req.GetNodeId(), Capability: capability, ReadOnly: req.GetReadonly() || capability.ReadOnly(),
			Secrets: req.GetSecrets(), VolumeContext: req.GetVolumeContext(),
		})
		return &csi.ControllerPublishVolumeResponse{PublishContext: publishContext}, uncertain(err)
	})
}

// checkAttach refuses a second node where the access mode allows one.
func (v *Volume) checkAttach(node string, capability Capability) error {
	for _, other := range v.Nodes {
		if other != node && !capability.MultiNode() {
			return fmt.Errorf("volume %q is attached to node %q, and access mode %s allows one node: %w", v.ID, other, capability.Mode, ErrPrecondition)
		}
	}
	return nil
}

// ControllerUnpublishVolume detaches a volume from a node, or from all nodes; one that does not exist is detached
// (CSI v1.13, "ControllerUnpublishVolume").
func (c *controller) ControllerUnpublishVolume(ctx context.Context, req *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	attacher := optional[Attacher](c.kit)
	if attacher == nil {
		return nil, unimplemented("ControllerUnpublishVolume")
	}
	op := onVolume(req.GetVolumeId(), req.GetSecrets(), checkCharacters("node_id", req.GetNodeId()))
	return perform(ctx, c.kit, op, func(ctx context.Context) (*csi.ControllerUnpublishVolumeResponse, error) {
		err := attacher.Detach(ctx, &DetachRequest{ID: req.GetVolumeId(), Node: req.GetNodeId(), Secrets: req.GetSecrets()})
		return &csi.ControllerUnpublishVolumeResponse{}, ignoreNotFound(err, req.GetVolumeId(), req.GetNodeId())
	})
}
