package stats

import (
	"context"
	"fmt"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// The types of CSI v1.13 have no place for the VolumeCondition of v1.12; its numbers are reserved, so it is read as a field that they do not know.
const (
	// CSI v1.12, NodeServiceCapability.RPC.VOLUME_CONDITION.
	conditionCapability csi.NodeServiceCapability_RPC_Type = 4
	// CSI v1.12, NodeGetVolumeStatsResponse.volume_condition.
	conditionField protowire.Number = 2
	// CSI v1.12, VolumeCondition.
	abnormalField protowire.Number = 1
	messageField  protowire.Number = 2
)

// readStats calls NodeGetVolumeStats (CSI v1.13, "NodeGetVolumeStats"). With VOLUME_CONDITION a driver may answer without a usage.
func readStats(ctx context.Context, r *volume.Usage, node csi.NodeClient, p volume.Published, withCondition bool) error {
	answer, err := node.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{
		VolumeId: p.Volume.Handle, VolumePath: p.Path, StagingTargetPath: p.Staging,
	})
	if err != nil {
		return err
	}
	if withCondition {
		if err := readCondition(r, answer); err != nil {
			return err
		}
	} else if len(answer.GetUsage()) == 0 {
		return fmt.Errorf("NodeGetVolumeStats of volume %q: the answer has no usage", p.Volume.Handle)
	}
	for _, u := range answer.GetUsage() {
		s := &volume.Space{Capacity: u.GetTotal(), Used: u.GetUsed(), Available: u.GetAvailable()}
		switch u.GetUnit() {
		case csi.VolumeUsage_BYTES:
			r.Bytes = s
		case csi.VolumeUsage_INODES:
			r.Inodes = s
		case csi.VolumeUsage_UNKNOWN:
			return fmt.Errorf("NodeGetVolumeStats of volume %q: the answer has a usage of an unknown unit", p.Volume.Handle)
		}
	}
	return nil
}

// readCondition reads the VolumeCondition of an answer, which may be missing.
func readCondition(r *volume.Usage, answer proto.Message) error {
	condition, found, err := field(answer.ProtoReflect().GetUnknown(), conditionField)
	if err != nil || !found {
		return err
	}
	r.Health = true
	abnormal, _, err := field(condition, abnormalField)
	if err != nil || len(abnormal) == 0 || abnormal[0] == 0 {
		return err
	}
	message, _, err := field(condition, messageField)
	r.Conditions = []volume.Condition{{Message: string(message)}}
	return err
}

// field returns the last value of a field of an encoded message: the contents of a message or text, or the encoding of a number.
func field(encoded []byte, number protowire.Number) (value []byte, found bool, err error) {
	for len(encoded) > 0 {
		n, kind, size := protowire.ConsumeTag(encoded)
		if size < 0 {
			return nil, false, fmt.Errorf("read VolumeCondition: %w", protowire.ParseError(size))
		}
		encoded = encoded[size:]
		size = protowire.ConsumeFieldValue(n, kind, encoded)
		if size < 0 {
			return nil, false, fmt.Errorf("read VolumeCondition: %w", protowire.ParseError(size))
		}
		if n == number {
			value, found = encoded[:size], true
			if kind == protowire.BytesType {
				value, _ = protowire.ConsumeBytes(value)
			}
		}
		encoded = encoded[size:]
	}
	return value, found, nil
}

// readHealth calls NodeGetVolumeHealth (CSI v1.13, "NodeGetVolumeHealth").
func readHealth(ctx context.Context, r *volume.Usage, node csi.NodeClient, p volume.Published) error {
	answer, err := node.NodeGetVolumeHealth(ctx, &csi.NodeGetVolumeHealthRequest{
		VolumeId: p.Volume.Handle, VolumePublishPath: p.Path, StagingTargetPath: p.Staging,
	})
	if err != nil {
		return err
	}
	r.Health, r.Conditions = true, nil // which replaces a VolumeCondition
	for _, s := range answer.GetVolumeHealth().GetHealthStatuses() {
		r.Conditions = append(r.Conditions, volume.Condition{Status: category(s.GetStatus()), Reason: s.GetReason(), Message: s.GetMessage()})
	}
	return nil
}

// category is the name that Kubernetes gives to a category of CSI; empty for those that it does not have.
func category(t csi.VolumeHealthErrorType) corev1.VolumeHealthStatusType {
	switch t {
	case csi.VolumeHealthErrorType_INACCESSIBLE:
		return corev1.VolumeHealthInaccessible
	case csi.VolumeHealthErrorType_DATA_LOSS:
		return corev1.VolumeHealthDataLoss
	case csi.VolumeHealthErrorType_DEGRADED:
		return corev1.VolumeHealthDegraded
	case csi.VolumeHealthErrorType_UNKNOWN_VOLUME_HEALTH_TYPE:
	}
	return ""
}

// describe is all problems in one line.
func describe(conditions []volume.Condition) string {
	all := make([]string, 0, len(conditions))
	for _, c := range conditions {
		text := c.Message
		if c.Reason != "" {
			text = c.Reason + ": " + c.Message
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}
