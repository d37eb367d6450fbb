package backend

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/longshore-csi/longshore/driverkit"
)

// poolWorld is a world with a pool that has a disk of its own.
func poolWorld(t *testing.T) (w *world, pool string) {
	t.Helper()
	w = newWorld(t)
	pool = w.path("pool")
	w.must(os.Mkdir(pool, 0o700))
	w.limits, w.config.PoolDirs = map[string]int64{"disk": gib, "slow": 2 * gib}, map[string]string{"disk": pool}
	return w, pool
}

// TestCapacityIsThatOfThePoolsThatAreCharged: with and without topology, in a driver with a node and in a controller alone.
func TestCapacityIsThatOfThePoolsThatAreCharged(t *testing.T) {
	for name, c := range map[string]struct {
		topology bool
		node     string
	}{"NodeWithTopology": {true, testNode}, "NodeWithoutTopology": {false, testNode}, "ControllerWithTopology": {true, ""}, "ControllerWithoutTopology": {false, ""}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.limits, w.config.Topology, w.config.NodeID = map[string]int64{"fast": gib}, c.topology, c.node
			s := w.start()
			w.create(s, nil)
			for range 2 {
				got, err := s.Capacity(w.ctx, &driverkit.CapacityRequest{})
				w.must(err)
				diff(t, "capacity", &driverkit.Capacity{Available: gib - mib, LargestVolume: gib - mib}, got)
				s = w.start() // The records say the same.
			}
		})
	}
}

// TestUnfinishedWorkOnAMissingDiskKeepsNoDriverFromStarting: it is finished at the first start with the disk.
func TestUnfinishedWorkOnAMissingDiskKeepsNoDriverFromStarting(t *testing.T) {
	w, pool := poolWorld(t)
	s := w.start()
	v := w.create(s, inPool("disk"))
	snap := w.snapshot(s, "snap", v.ID)
	torn, member := s.volumes.find("pvc-1").Clone(), *s.snapshots.find("snap")
	torn.Filling, member.Group = true, "group-that-was-not-complete"
	w.must(s.volumes.save(torn), s.snapshots.save(&member), os.Rename(pool, pool+"-away"))
	s = w.start()
	w.wantLeft(s, "disk", gib-2*mib)
	if s.volumes.find("pvc-1") == nil || s.snapshots.byID[snap.ID] == nil {
		t.Error("what cannot be reached was forgotten")
	}
	w.must(os.Rename(pool+"-away", pool))
	s = w.start()
	w.wantLeft(s, "disk", gib)
	w.wantNothing(pool)
}

// TestPoolDirectoryThatWasPreparedInPart: the process was killed between two directories.
func TestPoolDirectoryThatWasPreparedInPart(t *testing.T) {
	for _, name := range []string{"volumes", "trash", "copies", "snapshots"} {
		t.Run(name, func(t *testing.T) {
			w, pool := poolWorld(t)
			w.start()
			w.must(os.Remove(filepath.Join(pool, name)))
			s := w.start()
			v := w.create(s, inPool("disk"))
			snap := w.snapshot(s, "snap", v.ID)
			w.must(w.delete(s, v.ID), w.deleteSnapshot(s, snap.ID))
			w.wantNothing(pool)
		})
	}
}

// TestInlinePoolDirectoryThatWasPreparedInPart: so may that of the inline volumes of a node.
func TestInlinePoolDirectoryThatWasPreparedInPart(t *testing.T) {
	w, pool := poolWorld(t)
	w.must(os.MkdirAll(filepath.Join(NodeDir(pool, testNode), "trash"), 0o700))
	n := w.startNode()
	w.must(w.createInline(n, &driverkit.InlineRequest{ID: "csi-1", Capability: mounted(), Attributes: map[string]string{"kind": "disk"}}), n.DeleteInline(w.ctx, &driverkit.DeleteInlineRequest{ID: "csi-1"}))
}
