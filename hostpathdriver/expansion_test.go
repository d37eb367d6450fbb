package hostpathdriver

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestNodeOnlyExpansion: without ControllerExpandVolume the CO asks the node, which
// makes the volume larger, and charges the pool for it.
func TestNodeOnlyExpansion(t *testing.T) {
	m := newMachine(t)
	o := m.options(ModeAll, "n1")
	o.NoControllerExpansion, o.Capacity = true, map[string]int64{"pool": 10 * mib}
	p := m.start(o)
	made, err := p.CreateVolume(m.ctx, &csi.CreateVolumeRequest{
		Name: "pvc-1", CapacityRange: &csi.CapacityRange{RequiredBytes: mib}, VolumeCapabilities: []*csi.VolumeCapability{mountCapability()},
	})
	m.must(made, err)
	id := made.GetVolume().GetVolumeId()
	m.publish(p, id)
	expand := func(size int64) (*csi.NodeExpandVolumeResponse, error) {
		return p.NodeExpandVolume(m.ctx, &csi.NodeExpandVolumeRequest{
			VolumeId: id, VolumePath: m.path("target"), CapacityRange: &csi.CapacityRange{RequiredBytes: size},
		})
	}
	for range 2 {
		if got, err := expand(4 * mib); err != nil || got.GetCapacityBytes() != 4*mib {
			t.Errorf("expand on the node: %v, %v", got, err)
		}
	}
	left, err := p.GetCapacity(m.ctx, &csi.GetCapacityRequest{})
	if err != nil || left.GetAvailableCapacity() != 6*mib {
		t.Errorf("capacity %v, %v, want %d left", left, err, 6*mib)
	}
	if _, err := expand(11 * mib); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("more than the pool has: %v", err)
	}
	m.unpublish(p, id)
	m.must(p.DeleteVolume(m.ctx, &csi.DeleteVolumeRequest{VolumeId: id}))
	m.checkClean()
}
