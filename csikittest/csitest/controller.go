package csitest

import (
	"context"
	"maps"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// maxVolumeSize is the size of the largest volume that the driver creates: 16 TiB.
const maxVolumeSize = int64(16) << 40

// ControllerGetCapabilities returns the capabilities of Options or SetController.
func (d *Driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	reply := &csi.ControllerGetCapabilitiesResponse{}
	for _, c := range d.o.Controller {
		reply.Capabilities = append(reply.Capabilities, &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{
			Rpc: &csi.ControllerServiceCapability_RPC{Type: c},
		}})
	}
	return reply, nil
}

// CreateVolume creates a volume with the ID "vol-" and its name, or returns the
// existing volume of that name if it is compatible with the request.
func (d *Driver) CreateVolume(_ context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.checkCreate(req); err != nil {
		return nil, err
	}
	id := "vol-" + req.GetName()
	if v := d.volumes[id]; v != nil {
		if err := sameVolume(v, req); err != nil {
			return nil, err
		}
		return &csi.CreateVolumeResponse{Volume: v.proto()}, nil
	}
	v, err := d.newVolume(id, req)
	if err != nil {
		return nil, err
	}
	d.volumes[id] = v
	return &csi.CreateVolumeResponse{Volume: v.proto()}, nil
}

func (d *Driver) checkCreate(req *csi.CreateVolumeRequest) error {
	return firstError(
		needController(d, csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, "CreateVolume"),
		needField("name", req.GetName()),
		checkCapabilities(req.GetVolumeCapabilities()),
		checkRange(req.GetCapacityRange()),
		d.checkMutable(req.GetMutableParameters()),
	)
}

func (d *Driver) newVolume(id string, req *csi.CreateVolumeRequest) (*volume, error) {
	least, err := d.sourceSize(req.GetVolumeContentSource())
	if err != nil {
		return nil, err
	}
	size, err := pickSize(req.GetCapacityRange(), least)
	if err != nil {
		return nil, err
	}
	segment := d.pickTopology(req.GetAccessibilityRequirements())
	if from := d.snapshots[req.GetVolumeContentSource().GetSnapshot().GetSnapshotId()]; from != nil && from.Topology != nil && !maps.Equal(from.Topology, segment) {
		return nil, status.Errorf(codes.ResourceExhausted, "snapshot %q is accessible from %v, not from %v", from.ID, from.Topology, segment)
	}
	if free := d.free(); size > free {
		return nil, status.Errorf(codes.ResourceExhausted, "volume of %d bytes does not fit: %d bytes are free", size, free)
	}
	return newVolume(Volume{
		ID:         id,
		Name:       req.GetName(),
		Capacity:   size,
		Parameters: maps.Clone(req.GetParameters()),
		Context:    map[string]string{"name": req.GetName()},
		Mutable:    maps.Clone(req.GetMutableParameters()),
		Topology:   segment,
		Source:     cloneSource(req.GetVolumeContentSource()),
	}), nil
}

// sourceSize returns the minimum size of a volume with this source.
func (d *Driver) sourceSize(src *csi.VolumeContentSource) (int64, error) {
	switch {
	case src == nil:
		return 0, nil
	case src.GetVolume() != nil && d.hasController(csi.ControllerServiceCapability_RPC_CLONE_VOLUME):
		from := d.volumes[src.GetVolume().GetVolumeId()]
		if from == nil {
			return 0, status.Errorf(codes.NotFound, "source volume %q does not exist", src.GetVolume().GetVolumeId())
		}
		return from.Capacity, nil
	case src.GetSnapshot() != nil:
		from, ok := d.snapshots[src.GetSnapshot().GetSnapshotId()]
		if !ok {
			return 0, status.Errorf(codes.NotFound, "source snapshot %q does not exist", src.GetSnapshot().GetSnapshotId())
		}
		if from.ReadyAfter != 0 {
			return 0, status.Errorf(codes.FailedPrecondition, "source snapshot %q is not ready to use", from.ID)
		}
		return from.Size, nil
	default:
		return 0, status.Errorf(codes.InvalidArgument, "volume content source %v is not supported", src)
	}
}

// pickTopology chooses the segment of a new volume: the most preferred one,
// else the first requisite one, else that of this node.
func (d *Driver) pickTopology(req *csi.TopologyRequirement) map[string]string {
	if len(d.topology) == 0 {
		return nil
	}
	for _, segments := range [][]*csi.Topology{req.GetPreferred(), req.GetRequisite()} {
		if len(segments) > 0 {
			return maps.Clone(segments[0].GetSegments())
		}
	}
	return maps.Clone(d.topology)
}

// sameVolume checks that a volume satisfies a later request with its name.
// CSI spec v1.13, "CreateVolume Errors", ALREADY_EXISTS.
func sameVolume(v *volume, req *csi.CreateVolumeRequest) error {
	var what string
	switch {
	case !inRange(v.Capacity, req.GetCapacityRange()):
		what = "capacity"
	case !proto.Equal(v.Source, req.GetVolumeContentSource()):
		what = "content source"
	case !maps.Equal(v.Parameters, req.GetParameters()):
		what = "parameters"
	case !accessible(v.Topology, req.GetAccessibilityRequirements()):
		what = "topology"
	default:
		return nil
	}
	return status.Errorf(codes.AlreadyExists, "volume %q exists with an incompatible %s", v.Name, what)
}

// accessible reports whether a segment satisfies the requisite ones.
func accessible(segment map[string]string, req *csi.TopologyRequirement) bool {
	if segment == nil || len(req.GetRequisite()) == 0 {
		return true
	}
	for _, t := range req.GetRequisite() {
		if maps.Equal(segment, t.GetSegments()) {
			return true
		}
	}
	return false
}

// DeleteVolume deletes a volume that is not in use. It succeeds if the volume
// does not exist.
func (d *Driver) DeleteVolume(_ context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := firstError(
		needController(d, csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, "DeleteVolume"),
		needField("volume ID", req.GetVolumeId()),
	); err != nil {
		return nil, err
	}
	if v := d.volumes[req.GetVolumeId()]; v != nil && v.inUse() {
		return nil, d.violation("DeleteVolume of %q, which is in use: published to nodes %q, staged at %v, published at %v",
			v.ID, v.nodeIDs(), mounts(v.staged, ""), mounts(v.published, ""))
	}
	delete(d.volumes, req.GetVolumeId())
	return &csi.DeleteVolumeResponse{}, nil
}

// ValidateVolumeCapabilities confirms all capabilities that are complete for a
// volume that exists, if the volume context is the volume's.
func (d *Driver) ValidateVolumeCapabilities(_ context.Context, req *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.find(req.GetVolumeId())
	if err := firstError(err, checkCapabilities(req.GetVolumeCapabilities())); err != nil {
		return nil, err
	}
	if c := req.GetVolumeContext(); len(c) > 0 && !maps.Equal(c, v.Context) {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: "the volume context is not that of the volume"}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext:      req.GetVolumeContext(),
		VolumeCapabilities: req.GetVolumeCapabilities(),
		Parameters:         req.GetParameters(),
		MutableParameters:  req.GetMutableParameters(),
	}}, nil
}

// ControllerExpandVolume expands a volume; it never shrinks one.
func (d *Driver) ControllerExpandVolume(_ context.Context, req *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.find(req.GetVolumeId())
	if err := firstError(
		needController(d, csi.ControllerServiceCapability_RPC_EXPAND_VOLUME, "ControllerExpandVolume"),
		err,
		checkRange(req.GetCapacityRange()),
	); err != nil {
		return nil, err
	}
	if req.GetCapacityRange() == nil {
		return nil, status.Error(codes.InvalidArgument, "capacity range is missing")
	}
	if d.o.OfflineExpansion && v.inUse() {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %q is in use: published to nodes %q", v.ID, v.nodeIDs())
	}
	size, err := pickSize(req.GetCapacityRange(), v.Capacity)
	if err != nil {
		return nil, err
	}
	if size-v.Capacity > d.free() {
		return nil, status.Errorf(codes.ResourceExhausted, "growth to %d bytes does not fit", size)
	}
	v.Capacity = size
	return &csi.ControllerExpandVolumeResponse{
		CapacityBytes:         size,
		NodeExpansionRequired: d.hasNode(csi.NodeServiceCapability_RPC_EXPAND_VOLUME),
	}, nil
}

// ControllerModifyVolume sets mutable parameters.
func (d *Driver) ControllerModifyVolume(_ context.Context, req *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.find(req.GetVolumeId())
	if err := firstError(
		needController(d, csi.ControllerServiceCapability_RPC_MODIFY_VOLUME, "ControllerModifyVolume"),
		err,
		d.checkMutable(req.GetMutableParameters()),
	); err != nil {
		return nil, err
	}
	if v.Mutable == nil {
		v.Mutable = map[string]string{}
	}
	maps.Copy(v.Mutable, req.GetMutableParameters())
	return &csi.ControllerModifyVolumeResponse{}, nil
}

func cloneSource(src *csi.VolumeContentSource) *csi.VolumeContentSource {
	if src == nil {
		return nil
	}
	return proto.CloneOf(src)
}

// proto returns the volume as the specification describes it.
func (v *volume) proto() *csi.Volume {
	out := &csi.Volume{
		VolumeId:      v.ID,
		CapacityBytes: v.Capacity,
		VolumeContext: maps.Clone(v.Context),
		ContentSource: cloneSource(v.Source),
	}
	if v.Topology != nil {
		out.AccessibleTopology = []*csi.Topology{{Segments: maps.Clone(v.Topology)}}
	}
	return out
}
