package driverkit_test

import (
	"context"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/internal/testarray"
)

// bannedInNames are the first and last characters of each range that CSI v1.13 bans in names.
const bannedInNames = "\x00\x08\x0b\x0c\x0e\x1f\x7f\u0080\u009f"

// TestCharactersOfNames bans what CSI bans, and nothing else.
func TestCharactersOfNames(t *testing.T) {
	b := newBench(t, nil)
	volume := b.create("pvc-0").GetVolumeId()
	calls := map[string]func(name string) error{
		"volume": func(name string) error { return lastError(b.CreateVolume(ctxOf(t), createRequest(name))) },
		"snapshot": func(name string) error {
			return lastError(b.CreateSnapshot(ctxOf(t), &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: volume}))
		},
		"group snapshot": func(name string) error {
			return lastError(b.CreateVolumeGroupSnapshot(ctxOf(t), &csi.CreateVolumeGroupSnapshotRequest{Name: name, SourceVolumeIds: []string{volume}}))
		},
	}
	for kind, create := range calls {
		for _, r := range bannedInNames {
			wantCode(t, "name of a "+kind+" with "+string(r), create("a"+string(r)), codes.InvalidArgument)
		}
		for _, r := range "\t\n\r \u00a0\u2028é/\\\U0001F4BE" {
			wantCode(t, "name of a "+kind+" with "+string(r), create("a"+string(r)), codes.OK)
		}
		wantCode(t, "a "+kind+" without a name", create(""), codes.InvalidArgument)
		wantCode(t, "a "+kind+" with 129 bytes", create(strings.Repeat("a", 129)), codes.InvalidArgument)
		wantCode(t, "a "+kind+" with 128 bytes", create(strings.Repeat("a", 128)), codes.OK)
	}
}

// everything is a driver with every service.
type everything struct{ *testarray.Array }

func (everything) Blocks(context.Context, *driverkit.BlocksRequest) (*driverkit.Blocks, error) {
	return &driverkit.Blocks{}, nil
}

// streamError reads the first message of a stream.
func streamError[T any](stream interface{ Recv() (T, error) }, err error) error {
	if err == nil {
		_, err = stream.Recv()
	}
	return err
}

// TestCharactersOfIDs sends a control character in every id and path of every call.
func TestCharactersOfIDs(t *testing.T) {
	b := prepareBench(t, nil)
	b.start(everything{b.array})
	ctx := ctxOf(t)
	const id = "v\x01"
	v := &csi.Volume{VolumeId: "v"}
	path, secrets := b.path("a\x01"), map[string]string{"a\x01": "b\x01"} // Maps have no rule.
	stage, publish, target := b.stageRequest(&csi.Volume{VolumeId: id}), b.publishRequest(&csi.Volume{VolumeId: id}, "pod-1"), b.publishRequest(v, "a\x01")
	stagePath, staging := b.stageRequest(v), b.publishRequest(v, "pod-1")
	stagePath.StagingTargetPath, staging.StagingTargetPath = path, path
	snapshot, clone := createRequest("pvc-1"), createRequest("pvc-1")
	snapshot.VolumeContentSource = snapshotSource(id)
	clone.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id}}}
	size, caps := &csi.CapacityRange{RequiredBytes: 1}, []*csi.VolumeCapability{mountCapability()}
	for name, err := range map[string]error{
		"CreateVolume snapshot":      lastError(b.CreateVolume(ctx, snapshot)),
		"CreateVolume volume":        lastError(b.CreateVolume(ctx, clone)),
		"DeleteVolume":               lastError(b.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id, Secrets: secrets})),
		"ControllerPublish volume":   lastError(b.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: id, NodeId: "node-1", VolumeCapability: mountCapability()})),
		"ControllerPublish node":     lastError(b.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: "v", NodeId: id, VolumeCapability: mountCapability()})),
		"ControllerUnpublish volume": lastError(b.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: id})),
		"ControllerUnpublish node":   lastError(b.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: "v", NodeId: id})),
		"Validate":                   lastError(b.ValidateVolumeCapabilities(ctx, &csi.ValidateVolumeCapabilitiesRequest{VolumeId: id, VolumeCapabilities: caps})),
		"ControllerGetVolume":        lastError(b.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: id})),
		"ControllerGetVolumeHealth":  lastError(b.ControllerGetVolumeHealth(ctx, &csi.ControllerGetVolumeHealthRequest{VolumeId: id})),
		"ControllerExpand":           lastError(b.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{VolumeId: id, CapacityRange: size})),
		"ControllerModify":           lastError(b.ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{VolumeId: id})),
		"CreateSnapshot":             lastError(b.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id})),
		"DeleteSnapshot":             lastError(b.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: id})),
		"GetSnapshot":                lastError(b.GetSnapshot(ctx, &csi.GetSnapshotRequest{SnapshotId: id})),
		"ListSnapshots snapshot":     lastError(b.ListSnapshots(ctx, &csi.ListSnapshotsRequest{SnapshotId: id})),
		"ListSnapshots volume":       lastError(b.ListSnapshots(ctx, &csi.ListSnapshotsRequest{SourceVolumeId: id})),
		"CreateGroup":                lastError(b.CreateVolumeGroupSnapshot(ctx, &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{"v", id}})),
		"DeleteGroup":                lastError(b.DeleteVolumeGroupSnapshot(ctx, &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: id})),
		"DeleteGroup member":         lastError(b.DeleteVolumeGroupSnapshot(ctx, &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "g", SnapshotIds: []string{"s", id}})),
		"GetGroup":                   lastError(b.GetVolumeGroupSnapshot(ctx, &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: id})),
		"GetGroup member":            lastError(b.GetVolumeGroupSnapshot(ctx, &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: "g", SnapshotIds: []string{id}})),
		"GetMetadataAllocated":       streamError(b.GetMetadataAllocated(ctx, &csi.GetMetadataAllocatedRequest{SnapshotId: id})),
		"GetMetadataDelta base":      streamError(b.GetMetadataDelta(ctx, &csi.GetMetadataDeltaRequest{BaseSnapshotId: id, TargetSnapshotId: "s"})),
		"GetMetadataDelta target":    streamError(b.GetMetadataDelta(ctx, &csi.GetMetadataDeltaRequest{BaseSnapshotId: "s", TargetSnapshotId: id})),
		"NodeStage volume":           lastError(b.NodeStageVolume(ctx, stage)),
		"NodeStage path":             lastError(b.NodeStageVolume(ctx, stagePath)),
		"NodeUnstage volume":         lastError(b.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: b.path("staging")})),
		"NodeUnstage path":           lastError(b.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: "v", StagingTargetPath: path})),
		"NodePublish volume":         lastError(b.NodePublishVolume(ctx, publish)),
		"NodePublish target":         lastError(b.NodePublishVolume(ctx, target)),
		"NodePublish staging":        lastError(b.NodePublishVolume(ctx, staging)),
		"NodeUnpublish volume":       lastError(b.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: b.path("pod-1")})),
		"NodeUnpublish target":       lastError(b.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: path})),
		"NodeGetVolumeStats volume":  lastError(b.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: b.path("pod-1")})),
		"NodeGetVolumeStats path":    lastError(b.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: path})),
		"NodeGetVolumeHealth":        lastError(b.NodeGetVolumeHealth(ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: id})),
		"NodeExpand volume":          lastError(b.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{VolumeId: id, VolumePath: b.path("pod-1")})),
		"NodeExpand path":            lastError(b.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{VolumeId: "v", VolumePath: path})),
	} {
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "control character") {
			t.Errorf("%s: %v, want INVALID_ARGUMENT", name, err)
		}
	}
}
