package grpcapi

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// conditionOf reads what a client of CSI v1.12 would read, from the wire.
func conditionOf(t *testing.T, answer proto.Message) (found, abnormal bool, message string) {
	t.Helper()
	wire, err := proto.Marshal(answer)
	if err != nil {
		t.Fatal(err)
	}
	fields(t, wire, func(number protowire.Number, value []byte) {
		if number != 2 {
			return
		}
		found = true
		fields(t, value, func(number protowire.Number, value []byte) {
			if number == 1 {
				abnormal = value[0] == 1
			} else {
				message = string(value)
			}
		})
	})
	return found, abnormal, message
}

// fields calls see for each field of a message, with what stands for it.
func fields(t *testing.T, wire []byte, see func(number protowire.Number, value []byte)) {
	t.Helper()
	for len(wire) > 0 {
		number, kind, n := protowire.ConsumeTag(wire)
		if n < 0 {
			t.Fatal(protowire.ParseError(n))
		}
		wire = wire[n:]
		n = protowire.ConsumeFieldValue(number, kind, wire)
		if n < 0 {
			t.Fatal(protowire.ParseError(n))
		}
		value := wire[:n]
		if kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(wire)
		}
		see(number, value)
		wire = wire[n:]
	}
}

func TestVolumeCondition(t *testing.T) {
	f := newFixture(t, false)
	well, ill := f.create("pvc-1"), f.create("pvc-2")
	for _, id := range []string{well, ill} {
		stage := f.stage(id)
		stage.StagingTargetPath += id
		if _, err := f.NodeStageVolume(f.ctx, stage); err != nil {
			t.Fatal(err)
		}
	}
	f.controllerList.condition, f.nodeStats.condition = true, true
	f.mounter.Reboot()
	if err := os.Remove(f.contents(ill)); err != nil {
		t.Fatal(err)
	}
	list, err := f.ListVolumes(f.ctx, &csi.ListVolumesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range list.GetEntries() {
		id := entry.GetVolume().GetVolumeId()
		one, err := f.ControllerGetVolume(f.ctx, &csi.ControllerGetVolumeRequest{VolumeId: id})
		if err != nil {
			t.Fatal(err)
		}
		for _, answer := range []proto.Message{entry.GetStatus(), one.GetStatus()} {
			found, abnormal, message := conditionOf(t, answer)
			if !found || abnormal != (id == ill) || strings.Contains(message, "ContentsMissing") != (id == ill) || message == "" {
				t.Errorf("%T of %s: %t, %t, %q; want it abnormal: %t", answer, id, found, abnormal, message, id == ill)
			}
		}
	}
	stats, err := f.NodeGetVolumeStats(f.ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: well, VolumePath: f.path("staging") + well})
	if err != nil {
		t.Fatal(err)
	}
	if found, abnormal, message := conditionOf(t, stats); !found || !abnormal || !strings.Contains(message, "MountLost") {
		t.Errorf("on the node: %t, %t, %q; want a mount that is lost", found, abnormal, message)
	}
}

// TestVolumeConditionIsOff: it is not for kubelets that know the health calls.
func TestVolumeConditionIsOff(t *testing.T) {
	f := newFixture(t, false)
	f.create("pvc-1")
	list, err := f.ListVolumes(f.ctx, &csi.ListVolumesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if found, _, _ := conditionOf(t, list.GetEntries()[0].GetStatus()); found {
		t.Error("a condition that nobody has asked for")
	}
	for _, on := range []bool{false, true} {
		controller := NewController(ControllerConfig{Condition: on})
		if got := slices.Contains(controller.controllerList.announceController(), controllerCondition); got != on {
			t.Errorf("condition %t: controller announces it: %t", on, got)
		}
		node := NewNode(NodeConfig{Condition: on})
		if got := slices.Contains(node.nodeStats.announceNode(), nodeCondition); got != on {
			t.Errorf("condition %t: node announces it: %t", on, got)
		}
	}
}
