package grpcapi

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

func TestControllerModifyVolume(t *testing.T) {
	f := newFixture(t, false)
	request := createRequest("pvc-1")
	request.MutableParameters = map[string]string{"iops": "100"}
	created, err := f.CreateVolume(f.ctx, request)
	wantCode(t, "create", err, codes.OK)
	id := created.GetVolume().GetVolumeId()
	disk := createRequest("pvc-2")
	disk.VolumeCapabilities = []*csi.VolumeCapability{blockCapability()}
	disk.MutableParameters = map[string]string{"readAheadKiB": "big"}
	_, err = f.CreateVolume(f.ctx, disk)
	wantCode(t, "create with a bad value", err, codes.InvalidArgument)
	disk.MutableParameters = map[string]string{"readAheadKiB": "64"}
	created, err = f.CreateVolume(f.ctx, disk)
	wantCode(t, "create a device", err, codes.OK)
	device := created.GetVolume().GetVolumeId()
	for name, c := range map[string]struct {
		id         string
		parameters map[string]string
		want       codes.Code
	}{
		"NoID":    {parameters: map[string]string{"iops": "1"}, want: codes.InvalidArgument},
		"Unknown": {id: "x", parameters: map[string]string{"iops": "1"}, want: codes.NotFound},
		"Name":    {id: id, parameters: map[string]string{"tier": "gold"}, want: codes.InvalidArgument},
		"Nothing": {id: id},
		"NoDisk":  {id: id, parameters: map[string]string{"readAheadKiB": "128"}, want: codes.InvalidArgument},
		"Value":   {id: device, parameters: map[string]string{"readAheadKiB": "129"}, want: codes.InvalidArgument},
		"Both":    {id: device, parameters: map[string]string{"readAheadKiB": "128", "tier": "gold"}, want: codes.InvalidArgument},
		"Good":    {id: device, parameters: map[string]string{"readAheadKiB": "128", "iops": "1"}},
	} {
		_, err := f.ControllerModifyVolume(f.ctx, &csi.ControllerModifyVolumeRequest{VolumeId: c.id, MutableParameters: c.parameters})
		wantCode(t, name, err, c.want)
	}
	confirmed := func(iops string) bool {
		t.Helper()
		answer, err := f.ValidateVolumeCapabilities(f.ctx, &csi.ValidateVolumeCapabilitiesRequest{
			VolumeId: id, VolumeCapabilities: []*csi.VolumeCapability{mountCapability()}, MutableParameters: map[string]string{"iops": iops},
		})
		wantCode(t, "validate", err, codes.OK)
		return answer.GetConfirmed() != nil
	}
	if !confirmed("100") || confirmed("200") {
		t.Error("the parameters are not those of CreateVolume")
	}
	_, err = f.ControllerModifyVolume(f.ctx, &csi.ControllerModifyVolumeRequest{VolumeId: id, MutableParameters: map[string]string{"iops": "200"}})
	wantCode(t, "modify", err, codes.OK)
	if confirmed("100") || !confirmed("200") {
		t.Error("the parameters are not those of ControllerModifyVolume")
	}
	_, err = f.CreateVolume(f.ctx, request)
	wantCode(t, "a repeated CreateVolume, after the modification", err, codes.OK)
}
