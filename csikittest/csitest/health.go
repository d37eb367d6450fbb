package csitest

import (
	"cmp"
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// ConditionCapability is VOLUME_CONDITION of the controller in CSI v1.12, whose number is reserved in v1.13. A driver that announces it answers ListVolumes and
// ControllerGetVolume with the VolumeCondition that SetCondition has set, or a normal one.
const ConditionCapability csi.ControllerServiceCapability_RPC_Type = 11

// conditionField is the number of the VolumeCondition in the status of a volume, CSI v1.12.
const conditionField protowire.Number = 2

// Problem is an adverse condition of a volume, as CSI v1.13 reports it.
type Problem = csi.VolumeHealth_VolumeHealthEntry

// condition is a VolumeCondition of CSI v1.12.
type condition struct {
	abnormal bool
	message  string
}

// SetHealth sets what the driver reports of a volume that exists: no problems mean a healthy one.
func (d *Driver) SetHealth(id string, problems ...*Problem) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if v := d.volumes[id]; v != nil {
		v.problems = problems
	}
}

// SetCondition sets what a driver with ConditionCapability reports of a volume that exists.
func (d *Driver) SetCondition(id string, abnormal bool, message string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if v := d.volumes[id]; v != nil {
		v.condition = condition{abnormal: abnormal, message: message}
	}
}

// ControllerGetVolumeHealth returns the problems of one volume.
func (d *Driver) ControllerGetVolumeHealth(_ context.Context, req *csi.ControllerGetVolumeHealthRequest) (*csi.ControllerGetVolumeHealthResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.find(req.GetVolumeId())
	if err := firstError(needController(d, csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH, "ControllerGetVolumeHealth"), err); err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: v.health()}, nil
}

// ControllerListVolumeHealth lists the volumes that have problems in the order of their IDs, page by page.
func (d *Driver) ControllerListVolumeHealth(_ context.Context, req *csi.ControllerListVolumeHealthRequest) (*csi.ControllerListVolumeHealthResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := needController(d, csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH, "ControllerListVolumeHealth"); err != nil {
		return nil, err
	}
	var abnormal []string
	for _, id := range d.persistentIDs() {
		if len(d.volumes[id].problems) > 0 {
			abnormal = append(abnormal, id)
		}
	}
	ids, next, err := page(abnormal, req.GetStartingToken(), cmp.Or(int(req.GetMaxEntries()), d.pageSize))
	if err != nil {
		return nil, err
	}
	reply := &csi.ControllerListVolumeHealthResponse{NextToken: next}
	for _, id := range ids {
		reply.Entries = append(reply.Entries, d.volumes[id].health())
	}
	return reply, nil
}

func (v *volume) health() *csi.VolumeHealth {
	return &csi.VolumeHealth{VolumeId: v.ID, HealthStatuses: v.problems}
}

// addCondition adds the VolumeCondition of CSI v1.12 to the status of a volume, if the driver announces it.
func (d *Driver) addCondition(v *volume, volumeStatus proto.Message) {
	if !d.hasController(ConditionCapability) {
		return
	}
	var encoded []byte
	if v.condition.abnormal {
		encoded = protowire.AppendVarint(protowire.AppendTag(encoded, 1, protowire.VarintType), 1)
	}
	encoded = protowire.AppendString(protowire.AppendTag(encoded, 2, protowire.BytesType), v.condition.message)
	unknown := protowire.AppendBytes(protowire.AppendTag(nil, conditionField, protowire.BytesType), encoded)
	volumeStatus.ProtoReflect().SetUnknown(unknown)
}

// LimitPages gives the driver a page size of its own: its lists of volumes have at most that many entries where the caller names no number.
func (d *Driver) LimitPages(entries int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pageSize = entries
}
