package backend

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// TestRefresh: what another process did is seen, and only then.
func TestRefresh(t *testing.T) {
	w := newWorld(t)
	w.attach, w.limits = true, map[string]int64{"fast": 10 * gib}
	first := w.boot()
	kept, gone, attached := first.create("kept"), first.create("gone"), first.create("attached")
	second := w.boot()
	publish := func(s *system, id volume.ID) error {
		_, err := s.volumes.Publish(s.ctx, &volume.PublishRequest{ID: id, Node: testNode, Capability: sharer()})
		return err
	}
	w.must(publish(first, kept.ID))
	w.must(second.volumes.Delete(w.ctx, gone.ID), publish(second, attached.ID))
	added := second.create("added")
	w.must(second.volumes.volumes.records.Put(string(kept.ID), *kept)) // detached

	w.must(first.volumes.Refresh(w.ctx))
	if diff := cmp.Diff([]volume.ID{kept.ID, attached.ID, added.ID}, ids(first.volumes.volumes.catalog.all())); diff != "" {
		t.Errorf("volumes in the order in which this process saw them (-want +got):\n%s", diff)
	}
	if _, err := first.volumes.Find(w.ctx, "gone"); err == nil {
		t.Error("the name of the deleted volume is still taken")
	}
	if diff := cmp.Diff(map[string]int{testNode: 1}, first.volumes.slots.taken); diff != "" {
		t.Errorf("attachments per node (-want +got):\n%s", diff)
	}
	if c, err := first.pools.Capacity("fast"); err != nil || c.Available != 7*gib {
		t.Errorf("left in the pool: %v, %v, want %d", c, err, 7*gib)
	}
}

// TestRefreshCountsOwnVolumes: volumes on other nodes take nothing from the
// pools of this one, and the inline volumes of this one are still counted.
func TestRefreshCountsOwnVolumes(t *testing.T) {
	w := newWorld(t)
	w.limits = map[string]int64{"fast": 10 * gib}
	first := w.boot()
	w.must(first.node.Publish(w.ctx, w.inlineRequest("csi-1", map[string]string{"size": "1Gi"})))
	own := first.create("own")
	w.own = "node-2"
	second := newSystem(w, "node-2")
	other := second.create("other")
	w.must(first.volumes.Refresh(w.ctx))
	left := func(s *system, want int64) {
		t.Helper()
		if c, err := s.pools.Capacity("fast"); err != nil || c.Available != want*gib {
			t.Errorf("left in the pool: %v, %v, want %d", c, err, want*gib)
		}
	}
	left(first, 8)
	left(second, 9)
	w.must(first.volumes.Delete(w.ctx, other.ID))
	left(first, 8)
	w.must(second.volumes.Delete(w.ctx, own.ID), second.volumes.Refresh(w.ctx), first.volumes.Refresh(w.ctx))
	left(first, 9)
	left(second, 10)
}

// newSystem boots the controller of another node in the same world.
func newSystem(w *world, own string) *system {
	w.t.Helper()
	pools := volume.NewPools(w.limits)
	volumes, err := OpenVolumes(w.ctx, VolumesConfig{
		StateDir: w.stateDir, Placement: volume.Placement{Enabled: true, Own: own}, Pools: pools,
		MaxSize: 1 << 40, ProtectUsed: true, Mounter: w.mounter,
	})
	w.must(err)
	return &system{world: w, pools: pools, volumes: volumes}
}

// TestRefreshTellsOfDamage: an unreadable record is moved aside, the others
// are read.
func TestRefreshTellsOfDamage(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	good, bad := s.create("good"), s.create("bad")
	path := filepath.Join(w.stateDir, recordsDir, string(bad.ID)+".json")
	w.writeFile(path, "{")
	w.must(s.volumes.Refresh(w.ctx))
	if diff := cmp.Diff([]volume.ID{good.ID}, ids(s.volumes.volumes.catalog.all())); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
	w.must(os.RemoveAll(filepath.Join(w.stateDir, recordsDir)))
	if err := s.volumes.Refresh(w.ctx); err == nil {
		t.Error("Refresh without the directory of records: no error")
	}
	if diff := cmp.Diff([]volume.ID{good.ID}, ids(s.volumes.volumes.catalog.all())); diff != "" {
		t.Errorf("volumes after a failed Refresh (-want +got):\n%s", diff)
	}
}

// BenchmarkRefresh is what it costs when another process has changed
// something.
func BenchmarkRefresh(b *testing.B) {
	for _, count := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			ctx := klog.NewContext(context.Background(), klog.Logger{})
			volumes, err := OpenVolumes(ctx, VolumesConfig{
				StateDir: b.TempDir(), Pools: volume.NewPools(nil), MaxSize: 1 << 40, Mounter: &mount.Fake{},
			})
			if err != nil {
				b.Fatal(err)
			}
			for i := range count {
				if _, err := volumes.Create(ctx, createRequest(fmt.Sprint(i))); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				if err := volumes.Refresh(ctx); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
