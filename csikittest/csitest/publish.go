package csitest

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// ControllerPublishVolume attaches a volume to a node.
func (d *Driver) ControllerPublishVolume(_ context.Context, req *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := firstError(
		needController(d, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME, "ControllerPublishVolume"),
		needField("volume ID", req.GetVolumeId()),
		needField("node ID", req.GetNodeId()),
		checkCapability(req.GetVolumeCapability()),
	); err != nil {
		return nil, err
	}
	v, err := d.find(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if req.GetReadonly() && !d.hasController(csi.ControllerServiceCapability_RPC_PUBLISH_READONLY) {
		return nil, d.violation("ControllerPublishVolume of %q asks for read-only, but PUBLISH_READONLY is not announced", v.ID)
	}
	wanted := use{capability: proto.CloneOf(req.GetVolumeCapability()), readOnly: req.GetReadonly()}
	if err := d.mayPublishTo(v, req.GetNodeId(), wanted); err != nil {
		return nil, err
	}
	v.nodes[req.GetNodeId()] = wanted
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"attachment": v.ID + "@" + req.GetNodeId()}}, nil
}

func (d *Driver) mayPublishTo(v *volume, node string, wanted use) error {
	if !d.nodeExists(node) {
		return status.Errorf(codes.NotFound, "node %q does not exist", node)
	}
	if present, ok := v.nodes[node]; ok {
		if present.conflictsWith(wanted) {
			return status.Errorf(codes.AlreadyExists, "volume %q is published to node %q in an incompatible way", v.ID, node)
		}
		return nil
	}
	if len(v.nodes) > 0 && singleNode(wanted.capability) {
		return status.Errorf(codes.FailedPrecondition, "volume %q is published to nodes %q, and access mode %s allows only one",
			v.ID, v.nodeIDs(), wanted.capability.GetAccessMode().GetMode())
	}
	if limit := d.o.MaxVolumesPerNode; limit > 0 && d.publishedTo(node) >= limit {
		return status.Errorf(codes.ResourceExhausted, "node %q has %d volumes, as many as it can have", node, limit)
	}
	return nil
}

// conflictsWith reports whether one node, or one path, cannot have the same
// volume with both requests. Uses of AddVolume are compatible with everything.
func (u use) conflictsWith(other use) bool {
	return u.capability != nil && (u.readOnly != other.readOnly || !proto.Equal(u.capability, other.capability))
}

func (b *backend) publishedTo(node string) int64 {
	var n int64
	for _, v := range b.volumes {
		if _, ok := v.nodes[node]; ok {
			n++
		}
	}
	return n
}

// ControllerUnpublishVolume detaches a volume from a node, or from all nodes if
// the node ID is empty. It succeeds if the volume does not exist or is not attached.
func (d *Driver) ControllerUnpublishVolume(_ context.Context, req *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := firstError(
		needController(d, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME, "ControllerUnpublishVolume"),
		needField("volume ID", req.GetVolumeId()),
	); err != nil {
		return nil, err
	}
	v := d.volumes[req.GetVolumeId()]
	if v == nil {
		return &csi.ControllerUnpublishVolumeResponse{}, nil
	}
	node := req.GetNodeId()
	if staged, published := mounts(v.staged, node), mounts(v.published, node); len(staged)+len(published) > 0 {
		return nil, d.violation("ControllerUnpublishVolume of %q from node %q, which uses it: staged at %v, published at %v", v.ID, node, staged, published)
	}
	if node == "" {
		clear(v.nodes)
	}
	delete(v.nodes, node)
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}
