package csitest

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// GroupSnapshot is the state of a group snapshot: snapshots of several volumes that are taken and deleted together.
type GroupSnapshot struct {
	// ID is the handle, "group-" and the name for those made by CreateVolumeGroupSnapshot.
	ID string
	// Name is the name given to CreateVolumeGroupSnapshot.
	Name string
	// Snapshots are the IDs of its members, in the order of the volumes.
	Snapshots []string
	// Volumes are the IDs of the volumes.
	Volumes []string
	// Parameters are those of CreateVolumeGroupSnapshot.
	Parameters map[string]string
	// Created is when it was taken; zero: the driver does not report it.
	Created time.Time
}

func (g *GroupSnapshot) clone() GroupSnapshot {
	out := *g
	out.Snapshots, out.Volumes, out.Parameters = slices.Clone(g.Snapshots), slices.Clone(g.Volumes), maps.Clone(g.Parameters)
	return out
}

// GroupSnapshots returns the group snapshots that exist now, sorted by ID. Their members are among Snapshots.
func (d *Driver) GroupSnapshots() []GroupSnapshot {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]GroupSnapshot, 0, len(d.groups))
	for _, id := range slices.Sorted(maps.Keys(d.groups)) {
		out = append(out, d.groups[id].clone())
	}
	return out
}

// AddGroupSnapshot adds a group snapshot that exists without CreateVolumeGroupSnapshot; an existing one with that ID is replaced.
// AddSnapshot adds its members.
func (d *Driver) AddGroupSnapshot(g GroupSnapshot) {
	d.mu.Lock()
	defer d.mu.Unlock()
	added := g.clone()
	d.groups[g.ID] = &added
}

// GroupControllerGetCapabilities returns the capabilities of Options or SetGroupController. Without any the driver has no such service.
func (d *Driver) GroupControllerGetCapabilities(context.Context, *csi.GroupControllerGetCapabilitiesRequest) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.o.GroupController) == 0 {
		return nil, status.Error(codes.Unimplemented, "the driver has no group controller service")
	}
	reply := &csi.GroupControllerGetCapabilitiesResponse{}
	for _, c := range d.o.GroupController {
		reply.Capabilities = append(reply.Capabilities, &csi.GroupControllerServiceCapability{Type: &csi.GroupControllerServiceCapability_Rpc{
			Rpc: &csi.GroupControllerServiceCapability_RPC{Type: c},
		}})
	}
	return reply, nil
}

func needGroup(d *Driver, method string) error {
	const c = csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT
	if !slices.Contains(d.o.GroupController, c) {
		return status.Errorf(codes.Unimplemented, "%s needs the capability %s, which is not announced", method, c)
	}
	return nil
}

// CreateVolumeGroupSnapshot takes a group snapshot with the ID "group-" and its name, whose members have the IDs "snap-", the name, "@"
// and the ID of the volume; or it returns the existing one of that name if it is of the same volumes with the same parameters.
func (d *Driver) CreateVolumeGroupSnapshot(_ context.Context, req *csi.CreateVolumeGroupSnapshotRequest) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := firstError(needGroup(d, "CreateVolumeGroupSnapshot"), needField("name", req.GetName()), checkSources(req.GetSourceVolumeIds())); err != nil {
		return nil, err
	}
	id := "group-" + req.GetName()
	g := d.groups[id]
	if g == nil {
		var err error
		if g, err = d.newGroup(id, req); err != nil {
			return nil, err
		}
	}
	if !sameSet(g.Volumes, req.GetSourceVolumeIds()) || !maps.Equal(g.Parameters, req.GetParameters()) {
		return nil, status.Errorf(codes.AlreadyExists, "group snapshot %q exists, of volumes %q with parameters %q", g.Name, g.Volumes, g.Parameters)
	}
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: d.reportGroup(g)}, nil
}

func checkSources(volumes []string) error {
	unique := slices.Compact(slices.Sorted(slices.Values(volumes)))
	if len(volumes) == 0 || len(unique) < len(volumes) || unique[0] == "" {
		return status.Errorf(codes.InvalidArgument, "source volume IDs %q: want one or more, each once", volumes)
	}
	return nil
}

// sameSet compares lists of which the order does not count.
func sameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// newGroup takes all snapshots of a group, or none.
func (d *Driver) newGroup(id string, req *csi.CreateVolumeGroupSnapshotRequest) (*GroupSnapshot, error) {
	var volumes []*volume
	for _, id := range req.GetSourceVolumeIds() {
		v, err := d.find(id)
		if err != nil {
			return nil, err
		}
		volumes = append(volumes, v)
	}
	g := &GroupSnapshot{ID: id, Name: req.GetName(), Volumes: slices.Clone(req.GetSourceVolumeIds()), Parameters: maps.Clone(req.GetParameters()), Created: d.now()}
	for _, v := range volumes {
		s := d.newSnapshot("snap-"+req.GetName()+"@"+v.ID, v, req.GetParameters())
		s.Group, s.Created = id, g.Created
		g.Snapshots = append(g.Snapshots, s.ID)
	}
	d.groups[id] = g
	return g, nil
}

// DeleteVolumeGroupSnapshot deletes a group snapshot and its members, which must be those of the request. It succeeds if the group
// snapshot does not exist.
func (d *Driver) DeleteVolumeGroupSnapshot(_ context.Context, req *csi.DeleteVolumeGroupSnapshotRequest) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g, err := d.findGroup("DeleteVolumeGroupSnapshot", req.GetGroupSnapshotId(), req.GetSnapshotIds())
	if status.Code(err) == codes.NotFound {
		return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	for _, id := range g.Snapshots {
		if err := d.checkUnused(id); err != nil {
			return nil, err
		}
	}
	for _, id := range g.Snapshots {
		delete(d.snapshots, id)
	}
	delete(d.groups, g.ID)
	return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
}

// GetVolumeGroupSnapshot returns one group snapshot, whose members must be those of the request.
func (d *Driver) GetVolumeGroupSnapshot(_ context.Context, req *csi.GetVolumeGroupSnapshotRequest) (*csi.GetVolumeGroupSnapshotResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g, err := d.findGroup("GetVolumeGroupSnapshot", req.GetGroupSnapshotId(), req.GetSnapshotIds())
	if err != nil {
		return nil, err
	}
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: d.reportGroup(g)}, nil
}

// findGroup returns a group by its ID, if the members are those.
func (d *Driver) findGroup(method, id string, members []string) (*GroupSnapshot, error) {
	if err := firstError(needGroup(d, method), needField("group snapshot ID", id)); err != nil {
		return nil, err
	}
	g := d.groups[id]
	if g == nil {
		return nil, status.Errorf(codes.NotFound, "group snapshot %q does not exist", id)
	}
	if !sameSet(g.Snapshots, members) {
		return nil, status.Errorf(codes.InvalidArgument, "snapshot IDs %q: group snapshot %q has %q", members, id, g.Snapshots)
	}
	return g, nil
}

// reportGroup returns a group snapshot as the specification describes it, and counts the answer for its members.
func (b *backend) reportGroup(g *GroupSnapshot) *csi.VolumeGroupSnapshot {
	out := &csi.VolumeGroupSnapshot{GroupSnapshotId: g.ID, CreationTime: timestampOf(g.Created), ReadyToUse: true}
	for _, id := range g.Snapshots {
		if s := b.snapshots[id]; s != nil {
			out.Snapshots = append(out.Snapshots, s.report())
			out.ReadyToUse = out.ReadyToUse && out.Snapshots[len(out.Snapshots)-1].GetReadyToUse()
		}
	}
	return out
}
