package driverkit_test

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/longshore-csi/longshore/driverkit"
)

// conditionOf reads what a client of CSI v1.12 would read, from the wire.
func conditionOf(t *testing.T, answer proto.Message) (found, abnormal bool, message string) {
	t.Helper()
	for number, value := range fieldsOf(t, answer.ProtoReflect().GetUnknown()) {
		if number != 2 {
			continue
		}
		found = true
		fields := fieldsOf(t, value)
		abnormal, message = len(fields[1]) == 1 && fields[1][0] == 1, string(fields[2])
	}
	return found, abnormal, message
}

// fieldsOf returns the fields of a message by number: texts and messages without their length.
func fieldsOf(t *testing.T, wire []byte) map[protowire.Number][]byte {
	t.Helper()
	fields := map[protowire.Number][]byte{}
	for len(wire) > 0 {
		number, kind, n := protowire.ConsumeTag(wire)
		size := protowire.ConsumeFieldValue(number, kind, wire[max(n, 0):])
		if n < 0 || size < 0 {
			t.Fatalf("%x is no message", wire)
		}
		value := wire[n : n+size]
		if kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(value)
		}
		fields[number], wire = value, wire[n+size:]
	}
	return fields
}

// TestVolumeCondition reports the problems of volumes as CSI v1.12 did, where that is wanted.
func TestVolumeCondition(t *testing.T) {
	for _, wanted := range []bool{true, false} {
		b := newBench(t, func(o *driverkit.Options) { o.VolumeCondition = wanted })
		v := b.create("pvc-1")
		wantCode(t, "stage", b.stage(v), codes.OK)
		if !wanted {
			b.mounts.Reboot()
			_, err := b.NodeGetVolumeStats(ctxOf(t), &csi.NodeGetVolumeStatsRequest{VolumeId: v.GetVolumeId(), VolumePath: b.path("staging")})
			wantCode(t, "stats of a volume that is not mounted any more", err, codes.Internal)
			wantCode(t, "stage", b.stage(v), codes.OK)
		}
		check := func(what string, answer proto.Message, err error, ill bool, text string) {
			t.Helper()
			wantCode(t, what, err, codes.OK)
			found, abnormal, message := conditionOf(t, answer)
			if found != wanted || abnormal != (ill && wanted) || wanted && message != text {
				t.Errorf("%s, wanted %t: found %t, abnormal %t, message %q, want %q", what, wanted, found, abnormal, message, text)
			}
		}
		checkAll := func(ill bool, controller, node string) {
			t.Helper()
			one, err := b.ControllerGetVolume(ctxOf(t), &csi.ControllerGetVolumeRequest{VolumeId: v.GetVolumeId()})
			check("get", one.GetStatus(), err, ill, controller)
			list, err := b.ListVolumes(ctxOf(t), &csi.ListVolumesRequest{})
			check("list", list.GetEntries()[0].GetStatus(), err, ill, controller)
			if ill && !wanted {
				return
			}
			stats, err := b.NodeGetVolumeStats(ctxOf(t), &csi.NodeGetVolumeStatsRequest{VolumeId: v.GetVolumeId(), VolumePath: b.path("staging")})
			check("stats", stats, err, ill, node)
		}
		checkAll(false, "The volume is well", "The volume is well")
		b.mounts.Reboot()
		b.array.Break(v.GetVolumeId(), driverkit.Condition{Severity: driverkit.Degraded, Reason: "DiskFailed", Message: "one of two mirrors is gone"})
		checkAll(true, "DiskFailed: one of two mirrors is gone", "NotMounted: the volume is staged at "+b.path("staging")+", but is not mounted there any more")

		controller, err := b.ControllerGetCapabilities(ctxOf(t), &csi.ControllerGetCapabilitiesRequest{})
		wantCode(t, "capabilities", err, codes.OK)
		node, err := b.NodeGetCapabilities(ctxOf(t), &csi.NodeGetCapabilitiesRequest{})
		wantCode(t, "capabilities", err, codes.OK)
		announced := 0 // VOLUME_CONDITION is 11 and 4 in CSI v1.12.
		for _, c := range controller.GetCapabilities() {
			if c.GetRpc().GetType() == 11 {
				announced++
			}
		}
		for _, c := range node.GetCapabilities() {
			if c.GetRpc().GetType() == 4 {
				announced++
			}
		}
		if wanted && announced != 2 || !wanted && announced != 0 {
			t.Errorf("wanted %t: VOLUME_CONDITION is announced %d times", wanted, announced)
		}
		b.stop()
	}
}
