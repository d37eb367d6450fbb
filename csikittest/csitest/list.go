package csitest

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// tokenPrefix begins every token; the ID of the last volume of the previous
// page follows, so that pages stay correct while volumes are created and deleted.
const tokenPrefix = "after:"

// ListVolumes lists volumes in the order of their IDs, page by page.
func (d *Driver) ListVolumes(_ context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := needController(d, csi.ControllerServiceCapability_RPC_LIST_VOLUMES, "ListVolumes"); err != nil {
		return nil, err
	}
	ids, next, err := page(d.persistentIDs(), req.GetStartingToken(), cmp.Or(int(req.GetMaxEntries()), d.pageSize))
	if err != nil {
		return nil, err
	}
	reply := &csi.ListVolumesResponse{NextToken: next}
	for _, id := range ids {
		v := d.volumes[id]
		entry := &csi.ListVolumesResponse_Entry{Volume: v.proto()}
		if d.hasController(csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES) {
			entry.Status = &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: v.nodeIDs()}
		} else if d.hasController(ConditionCapability) {
			entry.Status = &csi.ListVolumesResponse_VolumeStatus{}
		}
		d.addCondition(v, entry.GetStatus())
		reply.Entries = append(reply.Entries, entry)
	}
	return reply, nil
}

// page cuts one page out of sorted ids and returns the token of the next one.
func page(ids []string, token string, size int) (part []string, next string, err error) {
	if size < 0 {
		return nil, "", status.Errorf(codes.InvalidArgument, "maximum of %d entries: must not be negative", size)
	}
	if token != "" {
		last, ok := strings.CutPrefix(token, tokenPrefix)
		if !ok {
			return nil, "", status.Errorf(codes.Aborted, "starting token %q is not one of this driver", token)
		}
		start, found := slices.BinarySearch(ids, last)
		if found {
			start++
		}
		ids = ids[start:]
	}
	if size == 0 || size >= len(ids) {
		return ids, "", nil
	}
	return ids[:size], tokenPrefix + ids[size-1], nil
}

func (d *Driver) persistentIDs() []string {
	return slices.DeleteFunc(d.sortedIDs(), func(id string) bool { return d.volumes[id].Ephemeral })
}

// ControllerGetVolume returns one volume and the nodes that it is published to.
func (d *Driver) ControllerGetVolume(_ context.Context, req *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.find(req.GetVolumeId())
	if err := firstError(needController(d, csi.ControllerServiceCapability_RPC_GET_VOLUME, "ControllerGetVolume"), err); err != nil {
		return nil, err
	}
	reply := &csi.ControllerGetVolumeResponse{
		Volume: v.proto(),
		Status: &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: v.nodeIDs()},
	}
	d.addCondition(v, reply.GetStatus())
	return reply, nil
}

// GetCapacity returns the free capacity, the same for every segment.
func (d *Driver) GetCapacity(_ context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := needController(d, csi.ControllerServiceCapability_RPC_GET_CAPACITY, "GetCapacity"); err != nil {
		return nil, err
	}
	for _, c := range req.GetVolumeCapabilities() {
		if err := checkCapability(c); err != nil {
			return nil, err
		}
	}
	return &csi.GetCapacityResponse{
		AvailableCapacity: d.free(),
		MaximumVolumeSize: wrapperspb.Int64(min(d.free(), maxVolumeSize)),
	}, nil
}
