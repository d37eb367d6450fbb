package driverkit

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// CSI v1.13 has replaced VolumeCondition by the health calls. Kubelets up to Kubernetes 1.36 and health monitors up to v0.18 know nothing else. The types
// of v1.13 have no place for it, but its numbers are reserved, so it is written as a field that they do not know.
const (
	// CSI v1.12, ControllerServiceCapability.RPC.VOLUME_CONDITION.
	controllerCondition controllerRPC = 11
	// CSI v1.12, NodeServiceCapability.RPC.VOLUME_CONDITION.
	nodeCondition csi.NodeServiceCapability_RPC_Type = 4
	// CSI v1.12: volume_condition of ListVolumesResponse.VolumeStatus, ControllerGetVolumeResponse.VolumeStatus and NodeGetVolumeStatsResponse.
	conditionField protowire.Number = 2
	// CSI v1.12, VolumeCondition.
	abnormalField protowire.Number = 1
	messageField  protowire.Number = 2
)

// conditions reports whether answers of the controller have a VolumeCondition; those of the node have one also without VolumeHealth.
func (k *kit) conditions() bool { return k.VolumeCondition && k.driver.VolumeHealth != nil }

// addCondition adds the VolumeCondition to an answer about a volume, where that is wanted.
func (c *controller) addCondition(ctx context.Context, answer proto.Message, id string) error {
	if !c.conditions() {
		return nil
	}
	found, err := c.driver.VolumeHealth(ctx, &HealthRequest{ID: id})
	if err == nil {
		setCondition(answer, valueOf(found).Conditions)
	}
	return err
}

// withCondition adds the VolumeCondition to statistics. A volume that has problems may have no statistics, but an error err.
func (n *node) withCondition(ctx context.Context, id string, answer *csi.NodeGetVolumeStatsResponse, err error) (*csi.NodeGetVolumeStatsResponse, error) {
	conditions, healthErr := n.health(ctx, &HealthRequest{ID: id})
	switch {
	case healthErr != nil || err != nil && len(conditions) == 0:
		return nil, errors.Join(err, healthErr)
	case err != nil:
		answer = &csi.NodeGetVolumeStatsResponse{}
	}
	setCondition(answer, conditions)
	return answer, nil
}

// setCondition adds the VolumeCondition that these problems are to an answer.
func setCondition(answer proto.Message, conditions []Condition) {
	messages := make([]string, 0, len(conditions))
	for _, c := range conditions {
		messages = append(messages, c.Reason+": "+c.Message)
	}
	var condition, field []byte
	if len(conditions) > 0 {
		condition = protowire.AppendTag(condition, abnormalField, protowire.VarintType)
		condition = protowire.AppendVarint(condition, protowire.EncodeBool(true))
	}
	condition = protowire.AppendTag(condition, messageField, protowire.BytesType)
	condition = protowire.AppendString(condition, cmp.Or(strings.Join(messages, "; "), "The volume is well")) // The field is required.
	field = protowire.AppendTag(field, conditionField, protowire.BytesType)
	field = protowire.AppendBytes(field, condition)
	answer.ProtoReflect().SetUnknown(field)
}
