package grpcapi

import (
	"context"
	"errors"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// controllerList is the part that shows volumes.
type controllerList struct {
	service volume.Service
	// attach is true when the published nodes are known.
	attach bool
	// condition adds the VolumeCondition of CSI v1.12.
	condition bool
}

func (c controllerList) announceController() []controllerRPC {
	announced := []controllerRPC{
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csi.ControllerServiceCapability_RPC_GET_VOLUME,
	}
	if c.attach {
		announced = append(announced, csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES)
	}
	if c.condition {
		announced = append(announced, controllerCondition)
	}
	return announced
}

// ListVolumes returns a page of the volumes that existed when the first page
// was asked for. A real driver hands the paging of its storage system
// through, or keeps an index such as this one.
func (c *controllerList) ListVolumes(ctx context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	if err := checkMax(req.GetMaxEntries()); err != nil {
		return nil, err
	}
	page, err := c.service.List(ctx, volume.ListRequest{Token: req.GetStartingToken(), Max: int(req.GetMaxEntries())})
	if err != nil {
		return nil, statusOf(err)
	}
	answer := &csi.ListVolumesResponse{NextToken: page.Next, Entries: make([]*csi.ListVolumesResponse_Entry, 0, len(page.Volumes))}
	for _, v := range page.Volumes {
		entry, err := c.entryOf(ctx, v)
		if err != nil {
			return nil, statusOf(err)
		}
		answer.Entries = append(answer.Entries, entry)
	}
	return answer, nil
}

func (c *controllerList) entryOf(ctx context.Context, v *volume.Volume) (*csi.ListVolumesResponse_Entry, error) {
	entry := &csi.ListVolumesResponse_Entry{Volume: volumeOf(v)}
	if c.attach {
		entry.Status = &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: v.PublishedNodes()}
	}
	if !c.condition {
		return entry, nil
	}
	if entry.Status == nil {
		entry.Status = &csi.ListVolumesResponse_VolumeStatus{}
	}
	health, err := c.service.Health(ctx, v.ID)
	if errors.Is(err, volume.ErrNotFound) {
		return entry, nil // it was deleted since the list was made
	}
	setCondition(entry.GetStatus(), health.Conditions)
	return entry, err
}

// ControllerGetVolume returns one volume. A real driver asks its storage
// system, not a cache.
func (c *controllerList) ControllerGetVolume(ctx context.Context, req *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	id, err := parseID(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	found, err := c.service.Get(ctx, id)
	if err != nil {
		return nil, statusOf(err)
	}
	answer := &csi.ControllerGetVolumeResponse{
		Volume: volumeOf(found),
		Status: &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: found.PublishedNodes()},
	}
	if c.condition {
		health, err := c.service.Health(ctx, id)
		if err != nil {
			return nil, statusOf(err)
		}
		setCondition(answer.GetStatus(), health.Conditions)
	}
	return answer, nil
}
