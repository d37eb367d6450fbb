package grpcapi

import (
	"os"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

func TestHealth(t *testing.T) {
	f := newFixture(t, false)
	well, ill := f.create("pvc-1"), f.create("pvc-2")
	if err := os.Remove(f.contents(ill)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		id   string
		code codes.Code
		want []csi.VolumeHealthErrorType
	}{
		"Well":    {id: well},
		"Ill":     {id: ill, want: []csi.VolumeHealthErrorType{csi.VolumeHealthErrorType_DATA_LOSS}},
		"NoID":    {code: codes.InvalidArgument},
		"Unknown": {id: "x", code: codes.NotFound},
	} {
		fromController, err := f.ControllerGetVolumeHealth(f.ctx, &csi.ControllerGetVolumeHealthRequest{VolumeId: c.id})
		wantCode(t, name, err, c.code)
		fromNode, err := f.NodeGetVolumeHealth(f.ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: c.id, VolumePublishPath: f.path("target")})
		wantCode(t, name+" on the node", err, c.code)
		for _, health := range []*csi.VolumeHealth{fromController.GetVolumeHealth(), fromNode.GetVolumeHealth()} {
			statuses := health.GetHealthStatuses()
			if len(statuses) != len(c.want) || health.GetVolumeId() != c.id && c.code == codes.OK {
				t.Errorf("%s: %v, want %v", name, health, c.want)
			}
			for i := range min(len(statuses), len(c.want)) {
				if statuses[i].GetStatus() != c.want[i] || statuses[i].GetReason() == "" {
					t.Errorf("%s: %v, want %v and a reason", name, statuses[i], c.want[i])
				}
			}
		}
	}
	page, err := f.ControllerListVolumeHealth(f.ctx, &csi.ControllerListVolumeHealthRequest{MaxEntries: 1})
	wantCode(t, "list", err, codes.OK)
	if entries := page.GetEntries(); len(entries) != 1 || entries[0].GetVolumeId() != ill || page.GetNextToken() != "" {
		t.Errorf("list %v, want %s alone", page, ill)
	}
	_, err = f.ControllerListVolumeHealth(f.ctx, &csi.ControllerListVolumeHealthRequest{MaxEntries: -1})
	wantCode(t, "negative", err, codes.InvalidArgument)
	_, err = f.ControllerListVolumeHealth(f.ctx, &csi.ControllerListVolumeHealthRequest{StartingToken: "x"})
	wantCode(t, "foreign token", err, codes.Aborted)
	if got, err := f.NodeGetStorageHealth(f.ctx, &csi.NodeGetStorageHealthRequest{}); err != nil {
		t.Errorf("storage: %v, %v", got, err)
	}
}

func TestSeverities(t *testing.T) {
	for from, want := range map[volume.Severity]csi.VolumeHealthErrorType{
		volume.Degraded:     csi.VolumeHealthErrorType_DEGRADED,
		volume.Inaccessible: csi.VolumeHealthErrorType_INACCESSIBLE,
		volume.DataLoss:     csi.VolumeHealthErrorType_DATA_LOSS,
		0:                   csi.VolumeHealthErrorType_UNKNOWN_VOLUME_HEALTH_TYPE,
	} {
		if got := severityOf(from); got != want {
			t.Errorf("%d: %v, want %v", from, got, want)
		}
	}
}
