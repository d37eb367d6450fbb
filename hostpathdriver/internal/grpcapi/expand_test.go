package grpcapi

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

func TestControllerExpandVolume(t *testing.T) {
	f := newFixture(t, false)
	request := createRequest("pvc-block")
	request.VolumeCapabilities = []*csi.VolumeCapability{blockCapability()}
	created, err := f.CreateVolume(f.ctx, request)
	wantCode(t, "create", err, codes.OK)
	directory, device := f.create("pvc-1"), created.GetVolume().GetVolumeId()
	cases := map[string]struct {
		reason string
		id     string
		bytes  int64
		change func(*csi.ControllerExpandVolumeRequest)
		code   codes.Code
		want   int64
		onNode bool
	}{
		"Directory":  {reason: "the size is a number", id: directory, bytes: 2 << 30, want: 2 << 30},
		"Device":     {reason: "the node has to look at the file again", id: device, bytes: 2 << 30, want: 2 << 30, onNode: true},
		"NoID":       {reason: "the id is required", bytes: 1, code: codes.InvalidArgument},
		"NoRange":    {reason: "so is the range", id: directory, change: func(r *csi.ControllerExpandVolumeRequest) { r.CapacityRange = nil }, code: codes.InvalidArgument},
		"Unknown":    {reason: "no such volume", id: "x", bytes: 1, code: codes.NotFound},
		"TooLarge":   {reason: "beyond the driver", id: directory, bytes: 2 << 40, code: codes.OutOfRange},
		"PoolFull":   {reason: "beyond the pool", id: directory, bytes: 200 << 30, code: codes.ResourceExhausted},
		"Bad":        {reason: "half a capability", id: directory, bytes: 1, change: func(r *csi.ControllerExpandVolumeRequest) { r.VolumeCapability = &csi.VolumeCapability{} }, code: codes.InvalidArgument},
		"AsADevice":  {reason: "a directory is none", id: directory, bytes: 1, change: func(r *csi.ControllerExpandVolumeRequest) { r.VolumeCapability = blockCapability() }, code: codes.InvalidArgument},
		"UsedAsMade": {reason: "the CO says how it is used", id: device, bytes: 1, change: func(r *csi.ControllerExpandVolumeRequest) { r.VolumeCapability = blockCapability() }, want: 2 << 30, onNode: true},
	}
	for _, name := range []string{"Directory", "Device", "NoID", "NoRange", "Unknown", "TooLarge", "PoolFull", "Bad", "AsADevice", "UsedAsMade"} {
		c := cases[name]
		t.Run(name, func(t *testing.T) {
			req := &csi.ControllerExpandVolumeRequest{VolumeId: c.id, CapacityRange: &csi.CapacityRange{RequiredBytes: c.bytes}}
			if c.change != nil {
				c.change(req)
			}
			got, err := f.ControllerExpandVolume(f.ctx, req)
			wantCode(t, c.reason, err, c.code)
			if got.GetCapacityBytes() != c.want || got.GetNodeExpansionRequired() != c.onNode {
				t.Errorf("%s: %v, want %d bytes, on the node: %t", c.reason, got, c.want, c.onNode)
			}
		})
	}
}

func TestNodeExpandVolume(t *testing.T) {
	f := newFixture(t, false)
	id := f.create("pvc-1")
	_, err := f.NodeStageVolume(f.ctx, f.stage(id))
	wantCode(t, "stage", err, codes.OK)
	cases := map[string]struct {
		reason string
		change func(*csi.NodeExpandVolumeRequest)
		code   codes.Code
	}{
		"Staged":   {reason: "the path by which the CO knows it", change: func(*csi.NodeExpandVolumeRequest) {}},
		"NoID":     {reason: "the id is required", change: func(r *csi.NodeExpandVolumeRequest) { r.VolumeId = "" }, code: codes.InvalidArgument},
		"NoPath":   {reason: "so is the path", change: func(r *csi.NodeExpandVolumeRequest) { r.VolumePath = "" }, code: codes.InvalidArgument},
		"Unknown":  {reason: "no such volume", change: func(r *csi.NodeExpandVolumeRequest) { r.VolumeId = "x" }, code: codes.NotFound},
		"Path":     {reason: "not there", change: func(r *csi.NodeExpandVolumeRequest) { r.VolumePath += "x" }, code: codes.NotFound},
		"TooLarge": {reason: "the controller comes first", change: func(r *csi.NodeExpandVolumeRequest) { r.CapacityRange = &csi.CapacityRange{RequiredBytes: 2 << 30} }, code: codes.OutOfRange},
		"Bad":      {reason: "half a capability", change: func(r *csi.NodeExpandVolumeRequest) { r.VolumeCapability = &csi.VolumeCapability{} }, code: codes.InvalidArgument},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			req := &csi.NodeExpandVolumeRequest{VolumeId: id, VolumePath: f.path("staging")}
			c.change(req)
			got, err := f.NodeExpandVolume(f.ctx, req)
			wantCode(t, c.reason, err, c.code)
			if err == nil && got.GetCapacityBytes() != 1<<30 {
				t.Errorf("%s: %v", c.reason, got)
			}
		})
	}
}
