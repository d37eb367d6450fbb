package driverkit

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Attacher attaches volumes to nodes before they are staged there, where Provisioner.Get and Driver.List set Volume.Nodes.
type Attacher interface {
	// Attach makes a volume reachable from a node, and returns how the node finds it. For a volume
	// that is attached there already it returns the same again. The kit refuses a second node where the access mode allows one only;
	// a second writer in mode MULTI_NODE_SINGLE_WRITER is the storage system's to refuse.
	// Errors: ErrNotFound for a volume or node, ErrExists where it is attached with other properties, ErrExhausted where the node has no free slot
	// (CSI v1.13, "ControllerPublishVolume").
	Attach(ctx context.Context, req *AttachRequest) (*Attached, error)
	// Detach undoes Attach. When it returns nil the node cannot write any more, whether it runs or not. NotFound of it is success
	// (CSI v1.13, "ControllerUnpublishVolume").
	Detach(ctx context.Context, req *DetachRequest) error
}

// AttachRequest asks to attach a volume to a node.
type AttachRequest struct {
	// ID is Volume.ID of Create.
	ID string
	// Node is Node.ID of NodeGetInfo.
	Node string
	// Capability is how the volume is to be used.
	Capability Capability
	// ReadOnly says that the node must not be able to write.
	ReadOnly bool
	// Secrets are those for attaching.
	Secrets Secrets
	// VolumeContext is Volume.Context of Create, with what the CO adds to it.
	VolumeContext map[string]string
}

// Attached is the result of Attach.
type Attached struct {
	// PublishContext is that of the StageRequest.
	PublishContext map[string]string
}

// DetachRequest asks to detach a volume from a node.
type DetachRequest struct {
	// ID is that of the AttachRequest.
	ID string
	// Node is that of the AttachRequest; empty for all nodes.
	Node string
	// Secrets are those for attaching.
	Secrets Secrets
}

// unimplemented is the answer of a call whose part the Driver does not have.
func unimplemented(method string) error {
	return status.Errorf(codes.Unimplemented, "%s: the driver does not announce it", method)
}

// ControllerPublishVolume attaches a volume to a node (CSI v1.13, "ControllerPublishVolume").
func (c *controller) ControllerPublishVolume(ctx context.Context, req *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	if c.driver.Attacher == nil {
		return nil, unimplemented("ControllerPublishVolume")
	}
	capability, err := c.capabilityOf(req.GetVolumeCapability())
	if err == nil && req.GetReadonly() && c.Support.NoReadOnlyAttach {
		err = fmt.Errorf("readonly: PUBLISH_READONLY is not announced: %w", ErrInvalid)
	}
	op := onVolume(req.GetVolumeId(), req.GetSecrets(), required("node_id", req.GetNodeId()), err)
	return perform(ctx, c.kit, op, func(ctx context.Context) (*csi.ControllerPublishVolumeResponse, error) {
		found, err := c.known(ctx, req.GetVolumeId(), req.GetSecrets())
		if err != nil {
			return nil, err
		}
		if err := found.checkAttach(req.GetNodeId(), capability); err != nil {
			return nil, err
		}
		attached, err := c.driver.Attacher.Attach(ctx, &AttachRequest{
			ID: req.GetVolumeId(), Node: req.GetNodeId(), Capability: capability, ReadOnly: req.GetReadonly() || capability.ReadOnly(),
			Secrets: req.GetSecrets(), VolumeContext: req.GetVolumeContext(),
		})
		if err != nil {
			return nil, uncertain(err)
		}
		return &csi.ControllerPublishVolumeResponse{PublishContext: valueOf(attached).PublishContext}, nil
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
	if c.driver.Attacher == nil {
		return nil, unimplemented("ControllerUnpublishVolume")
	}
	op := onVolume(req.GetVolumeId(), req.GetSecrets(), checkCharacters("node_id", req.GetNodeId()))
	return perform(ctx, c.kit, op, func(ctx context.Context) (*csi.ControllerUnpublishVolumeResponse, error) {
		err := c.driver.Attacher.Detach(ctx, &DetachRequest{ID: req.GetVolumeId(), Node: req.GetNodeId(), Secrets: req.GetSecrets()})
		return &csi.ControllerUnpublishVolumeResponse{}, ignoreNotFound(err, req.GetVolumeId(), req.GetNodeId())
	})
}
