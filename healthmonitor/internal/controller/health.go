package controller

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// The limits of the API server for the health of a claim: the number of conditions, and the bytes of a reason and of a message.
const (
	maxConditions = 16
	maxReason     = 256
	maxMessage    = 1024
)

// The types of CSI v1.13 have no place for the VolumeCondition of v1.12; its numbers are reserved, so it is read as a field that they do not know.
const (
	// conditionField is the VolumeCondition in the statuses of ListVolumes and ControllerGetVolume.
	conditionField protowire.Number = 2
	// abnormalField and messageField are those of VolumeCondition.
	abnormalField protowire.Number = 1
	messageField  protowire.Number = 2
)

// errNoCondition is an answer without the VolumeCondition that CSI v1.12 demands of drivers with VOLUME_CONDITION. It says nothing about the volume.
var errNoCondition = errors.New("answer has no VolumeCondition although the driver announces VOLUME_CONDITION")

// health is what a driver has answered about a volume: its problems, none if it is healthy. A VolumeCondition that is abnormal is a problem without a category.
type health struct {
	problems []corev1.VolumeHealthCondition
	// unknown are the categories that Kubernetes does not have. CSI v1.13 wants them shown and not acted on.
	unknown []csi.VolumeHealthErrorType
}

// healthOf reads an answer of CSI v1.13. Problems have the order of their categories and reasons, and each of these once.
func healthOf(answer *csi.VolumeHealth) health {
	var h health
	for _, reported := range answer.GetHealthStatuses() {
		category := categoryOf(reported.GetStatus())
		if category == "" {
			h.unknown = append(h.unknown, reported.GetStatus())
			continue
		}
		h.problems = append(h.problems, corev1.VolumeHealthCondition{
			Status: category, Reason: reasonOf(reported.GetReason(), category), Message: kube.Cut(reported.GetMessage(), maxMessage),
		})
	}
	slices.SortStableFunc(h.problems, compareIdentity)
	h.problems = slices.CompactFunc(h.problems, func(a, b corev1.VolumeHealthCondition) bool { return compareIdentity(a, b) == 0 })
	h.problems = h.problems[:min(len(h.problems), maxConditions)]
	return h
}

// categoryOf is the name that Kubernetes gives to a category of CSI; empty for those that it does not have.
func categoryOf(t csi.VolumeHealthErrorType) corev1.VolumeHealthStatusType {
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

// reasonOf is the reason of a driver, or the category where the API server does not accept it: that refuses the whole status.
func reasonOf(text string, category corev1.VolumeHealthStatusType) string {
	if text == "" || len(text) > maxReason || len(validation.IsValidConditionReason(text)) > 0 {
		return string(category)
	}
	return text
}

// compareIdentity orders problems by what identifies them.
func compareIdentity(a, b corev1.VolumeHealthCondition) int {
	return cmp.Or(cmp.Compare(a.Status, b.Status), cmp.Compare(a.Reason, b.Reason))
}

// conditionOf reads the VolumeCondition in the status of a volume, as CSI v1.12 has it.
func conditionOf(status proto.Message) (health, error) {
	condition, found, err := field(status.ProtoReflect().GetUnknown(), conditionField)
	switch {
	case err != nil:
		return health{}, err
	case !found:
		return health{}, errNoCondition
	}
	abnormal, _, err := field(condition, abnormalField)
	if err != nil || len(abnormal) == 0 || abnormal[0] == 0 {
		return health{}, err
	}
	message, _, err := field(condition, messageField)
	return health{problems: []corev1.VolumeHealthCondition{{Message: kube.Cut(string(message), maxMessage)}}}, err
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

// identity distinguishes problems: categories and reasons, whose messages may have numbers that differ each time, or the text of a VolumeCondition, which has
// nothing else.
func identity(problems []corev1.VolumeHealthCondition) string {
	parts := make([]string, 0, len(problems))
	for _, p := range problems {
		if p.Status == "" {
			return p.Message
		}
		parts = append(parts, string(p.Status)+"/"+p.Reason)
	}
	return strings.Join(parts, ",")
}

// describe is all problems in one line, for users. That of a VolumeCondition is the text of the driver, as upstream has it.
func describe(problems []corev1.VolumeHealthCondition) string {
	parts := make([]string, 0, len(problems))
	for _, p := range problems {
		text := p.Message
		switch {
		case p.Status != "":
			text = strings.TrimSuffix(fmt.Sprintf("%s (%s): %s", p.Status, p.Reason, p.Message), ": ")
		case text == "":
			text = "the driver reports an abnormal condition of the volume without a message"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

// categoriesOf are the distinct categories of problems; that of a VolumeCondition is Abnormal.
func categoriesOf(problems []corev1.VolumeHealthCondition) []string {
	all := make([]string, 0, len(problems))
	for _, p := range problems {
		all = append(all, cmp.Or(string(p.Status), "Abnormal"))
	}
	return slices.Compact(all)
}
