package backend

import (
	"testing"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// TestLargestVolumeFitsOnTheDisk: a scheduler prefers maximum_volume_size to the
// available capacity.
func TestLargestVolumeFitsOnTheDisk(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	disk, err := freeOf(w.stateDir)
	w.must(err)
	s.volumes.cfg.MaxSize = 2 * disk.bytes
	got, err := s.volumes.Capacity(s.ctx, &volume.CapacityRequest{})
	w.must(err)
	if got.Largest <= 0 || got.Largest > got.Available {
		t.Errorf("the largest volume has %d bytes, available are %d", got.Largest, got.Available)
	}
	s.volumes.cfg.MaxSize = 1 << 20
	if got, err = s.volumes.Capacity(s.ctx, &volume.CapacityRequest{}); err != nil || got.Largest != 1<<20 {
		t.Errorf("with a limit of 1 MiB: %+v, %v", got, err)
	}
}
