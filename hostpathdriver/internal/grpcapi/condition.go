package grpcapi

import (
	"cmp"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// CSI v1.13 has replaced VolumeCondition by the health calls. Kubelets up to
// Kubernetes 1.36 and health monitors up to v0.18 know nothing else. The types of
// v1.13 have no place for it, but its numbers are reserved, so it is written as
// a field that they do not know.
const (
	// CSI v1.12, ControllerServiceCapability.RPC.VOLUME_CONDITION.
	controllerCondition controllerRPC = 11
	// CSI v1.12, NodeServiceCapability.RPC.VOLUME_CONDITION.
	nodeCondition nodeRPC = 4
	// CSI v1.12: volume_condition of ListVolumesResponse.VolumeStatus,
	// ControllerGetVolumeResponse.VolumeStatus and NodeGetVolumeStatsResponse.
	conditionField protowire.Number = 2
	// CSI v1.12, VolumeCondition.
	abnormalField protowire.Number = 1
	messageField  protowire.Number = 2
)

// setCondition adds the volume_condition of CSI v1.12 to an answer.
func setCondition(answer proto.Message, conditions []volume.Condition) {
	var condition []byte
	if len(conditions) > 0 {
		condition = protowire.AppendTag(condition, abnormalField, protowire.VarintType)
		condition = protowire.AppendVarint(condition, protowire.EncodeBool(true))
	}
	condition = protowire.AppendTag(condition, messageField, protowire.BytesType)
	condition = protowire.AppendString(condition, conditionMessage(conditions))
	var field []byte
	field = protowire.AppendTag(field, conditionField, protowire.BytesType)
	field = protowire.AppendBytes(field, condition)
	answer.ProtoReflect().SetUnknown(field)
}

// conditionMessage is never empty: the field is required.
func conditionMessage(conditions []volume.Condition) string {
	messages := make([]string, 0, len(conditions))
	for _, c := range conditions {
		messages = append(messages, c.Reason+": "+c.Message)
	}
	return cmp.Or(strings.Join(messages, "; "), "The volume is well")
}
