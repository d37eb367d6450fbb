package csitest

import (
	"context"
	"maps"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// ephemeralKey marks the volume context of an inline volume (KEP-596).
const ephemeralKey = "csi.storage.k8s.io/ephemeral"

// NodeGetCapabilities returns the capabilities of Options or SetNode.
func (d *Driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	reply := &csi.NodeGetCapabilitiesResponse{}
	for _, c := range d.o.Node {
		reply.Capabilities = append(reply.Capabilities, &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{
			Rpc: &csi.NodeServiceCapability_RPC{Type: c},
		}})
	}
	return reply, nil
}

// NodeGetInfo returns the node's ID, volume limit and segment.
func (d *Driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	reply := &csi.NodeGetInfoResponse{NodeId: d.nodeID, MaxVolumesPerNode: d.o.MaxVolumesPerNode}
	if len(d.topology) > 0 {
		reply.AccessibleTopology = &csi.Topology{Segments: maps.Clone(d.topology)}
	}
	return reply, nil
}

// NodeStageVolume stages a volume at one path of the node.
func (d *Driver) NodeStageVolume(_ context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := firstError(
		needNode(d, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, "NodeStageVolume"),
		needField("volume ID", req.GetVolumeId()),
		needField("staging target path", req.GetStagingTargetPath()),
		checkCapability(req.GetVolumeCapability()),
	); err != nil {
		return nil, err
	}
	v, err := d.find(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if err := d.needAttached(v, "NodeStageVolume"); err != nil {
		return nil, err
	}
	at := Mount{Node: d.nodeID, Path: req.GetStagingTargetPath()}
	wanted := use{capability: proto.CloneOf(req.GetVolumeCapability())}
	present, again := v.staged[at]
	switch {
	case again && present.conflictsWith(wanted):
		return nil, status.Errorf(codes.AlreadyExists, "volume %q is staged at %q with another capability", v.ID, at.Path)
	case !again && len(mounts(v.staged, d.nodeID)) > 0:
		return nil, d.violation("NodeStageVolume of %q at %q, but it is staged at %v", v.ID, at.Path, mounts(v.staged, d.nodeID))
	}
	v.staged[at] = wanted
	return &csi.NodeStageVolumeResponse{}, nil
}

// needAttached checks that the controller has published the volume to this
// node, if the driver announces PUBLISH_UNPUBLISH_VOLUME.
func (d *Driver) needAttached(v *volume, method string) error {
	if _, ok := v.nodes[d.nodeID]; ok || !d.hasController(csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME) {
		return nil
	}
	return d.violation("%s of %q on node %q, to which the controller has not published it", method, v.ID, d.nodeID)
}

// NodeUnstageVolume undoes NodeStageVolume. It succeeds if the volume is not staged there.
func (d *Driver) NodeUnstageVolume(_ context.Context, req *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := firstError(
		needNode(d, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, "NodeUnstageVolume"),
		needField("volume ID", req.GetVolumeId()),
		needField("staging target path", req.GetStagingTargetPath()),
	); err != nil {
		return nil, err
	}
	v := d.volumes[req.GetVolumeId()]
	if v == nil {
		return &csi.NodeUnstageVolumeResponse{}, nil
	}
	at := Mount{Node: d.nodeID, Path: req.GetStagingTargetPath()}
	if published := mounts(v.published, d.nodeID); len(published) > 0 && v.isStaged(at) {
		return nil, d.violation("NodeUnstageVolume of %q from %q, but it is published at %v", v.ID, at.Path, published)
	}
	delete(v.staged, at)
	return &csi.NodeUnstageVolumeResponse{}, nil
}

func (v *volume) isStaged(at Mount) bool {
	_, ok := v.staged[at]
	return ok
}

// NodePublishVolume publishes a volume at a target path of the node. It creates
// an inline volume, which NodeUnpublishVolume deletes.
func (d *Driver) NodePublishVolume(_ context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := firstError(
		needField("volume ID", req.GetVolumeId()),
		needField("target path", req.GetTargetPath()),
		checkCapability(req.GetVolumeCapability()),
	); err != nil {
		return nil, err
	}
	v, err := d.publishable(req)
	if err != nil {
		return nil, err
	}
	at := Mount{Node: d.nodeID, Path: req.GetTargetPath()}
	wanted := use{capability: proto.CloneOf(req.GetVolumeCapability()), readOnly: req.GetReadonly()}
	present, again := v.published[at]
	switch {
	case again && present.conflictsWith(wanted):
		return nil, status.Errorf(codes.AlreadyExists, "volume %q is published at %q in an incompatible way", v.ID, at.Path)
	case !again && len(v.published) > 0 && wanted.capability.GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER:
		return nil, status.Errorf(codes.FailedPrecondition, "volume %q is published at %v, and access mode SINGLE_NODE_SINGLE_WRITER allows one target path", v.ID, mounts(v.published, ""))
	}
	if err := d.makeTarget(at.Path, wanted.capability); err != nil {
		return nil, err
	}
	v.published[at] = wanted
	d.volumes[v.ID] = v
	return &csi.NodePublishVolumeResponse{}, nil
}

// publishable returns the volume of a request, or an error if a call that must
// precede NodePublishVolume is missing. An inline volume may be new.
func (d *Driver) publishable(req *csi.NodePublishVolumeRequest) (*volume, error) {
	if req.GetVolumeContext()[ephemeralKey] == "true" {
		if v := d.volumes[req.GetVolumeId()]; v != nil {
			return v, nil
		}
		return newVolume(Volume{ID: req.GetVolumeId(), Context: maps.Clone(req.GetVolumeContext()), Ephemeral: true}), nil
	}
	v, err := d.find(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if err := d.needAttached(v, "NodePublishVolume"); err != nil {
		return nil, err
	}
	if !d.hasNode(csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) {
		return v, nil
	}
	if err := needField("staging target path", req.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	if !v.isStaged(Mount{Node: d.nodeID, Path: req.GetStagingTargetPath()}) {
		return nil, d.violation("NodePublishVolume of %q at %q, but it is not staged at %q", v.ID, req.GetTargetPath(), req.GetStagingTargetPath())
	}
	return v, nil
}

// NodeUnpublishVolume undoes NodePublishVolume. It succeeds if the volume is not
// published there.
func (d *Driver) NodeUnpublishVolume(_ context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := firstError(needField("volume ID", req.GetVolumeId()), needField("target path", req.GetTargetPath())); err != nil {
		return nil, err
	}
	if err := d.removeTarget(req.GetTargetPath()); err != nil {
		return nil, err
	}
	if v := d.volumes[req.GetVolumeId()]; v != nil {
		delete(v.published, Mount{Node: d.nodeID, Path: req.GetTargetPath()})
		if v.Ephemeral && len(v.published) == 0 {
			delete(d.volumes, v.ID)
		}
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// NodeGetVolumeStats returns the size of a volume, all of it unused.
func (d *Driver) NodeGetVolumeStats(_ context.Context, req *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.usedHere(req.GetVolumeId(), req.GetVolumePath())
	if err := firstError(needNode(d, csi.NodeServiceCapability_RPC_GET_VOLUME_STATS, "NodeGetVolumeStats"), err); err != nil {
		return nil, err
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{
		Unit: csi.VolumeUsage_BYTES, Total: v.Capacity, Available: v.Capacity,
	}}}, nil
}

// NodeExpandVolume returns the size that ControllerExpandVolume has set.
func (d *Driver) NodeExpandVolume(_ context.Context, req *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.usedHere(req.GetVolumeId(), req.GetVolumePath())
	if err := firstError(
		needNode(d, csi.NodeServiceCapability_RPC_EXPAND_VOLUME, "NodeExpandVolume"),
		err,
		checkRange(req.GetCapacityRange()),
	); err != nil {
		return nil, err
	}
	if !inRange(v.Capacity, req.GetCapacityRange()) {
		return nil, status.Errorf(codes.OutOfRange, "volume %q has %d bytes, which is not in the range asked for", v.ID, v.Capacity)
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: v.Capacity}, nil
}

// usedHere returns a volume that is staged or published at path on this node.
func (d *Driver) usedHere(id, path string) (*volume, error) {
	if err := firstError(needField("volume ID", id), needField("volume path", path)); err != nil {
		return nil, err
	}
	v, err := d.find(id)
	if err != nil {
		return nil, err
	}
	at := Mount{Node: d.nodeID, Path: path}
	if _, published := v.published[at]; !published && !v.isStaged(at) {
		return nil, status.Errorf(codes.NotFound, "volume %q is not at %q on node %q", id, path, d.nodeID)
	}
	return v, nil
}
