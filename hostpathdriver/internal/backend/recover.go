package backend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/driverkit/state"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// Refresh reads the records again, because another process has changed them.
// What that process did is complete.
func (v *Volumes) Refresh(ctx context.Context) error {
	loaded, err := v.load(ctx)
	if err != nil {
		return fmt.Errorf("read volumes in %s again: %w", v.cfg.StateDir, err)
	}
	v.take(loaded)
	klog.FromContext(ctx).V(4).Info("Read volumes again", logging.KeyCount, len(loaded.volumes), logging.KeyPath, v.cfg.StateDir)
	return nil
}

// Recover reads the records, and brings the disk in line with them after a
// process that may have been killed in the middle of a call. No call may be
// under way in any process, other than copies.
func (v *Volumes) Recover(ctx context.Context) error {
	if err := v.recover(ctx); err != nil {
		return fmt.Errorf("recover volumes in %s: %w", v.cfg.StateDir, err)
	}
	return nil
}

// records are all that the controller has written.
type records struct {
	volumes   map[volume.ID]*volume.Volume
	snapshots map[volume.ID]*volume.Snapshot
	groups    map[volume.ID]*volume.Group
}

func (v *Volumes) load(ctx context.Context) (all records, err error) {
	if all.volumes, err = v.volumes.load(ctx); err != nil {
		return all, err
	}
	if all.snapshots, err = v.snapshots.load(ctx); err != nil {
		return all, err
	}
	all.groups, err = v.groups.load(ctx)
	return all, err
}

func (v *Volumes) recover(ctx context.Context) error {
	all, err := v.load(ctx)
	if err != nil {
		return err
	}
	if err := v.adoptVolumes(ctx, all); err != nil {
		return err
	}
	if err := v.adoptSnapshots(ctx, all); err != nil {
		return err
	}
	v.take(all)
	err = errors.Join(v.volumes.removeOrphans(ctx), v.snapshots.removeOrphans(ctx), v.sweepCopies())
	if err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Loaded volumes", logging.KeyCount, len(all.volumes), logging.KeySnapshots, len(all.snapshots), logging.KeyPath, v.cfg.StateDir)
	return nil
}

// adoptVolumes takes the volumes over, finishes the deletion of those whose
// contents are in the trash already, and releases those that no group holds
// any more.
func (v *Volumes) adoptVolumes(ctx context.Context, all records) error {
	for _, id := range slices.Sorted(maps.Keys(all.volumes)) {
		found := all.volumes[id]
		exists, err := v.volumes.exists(ctx, found)
		if err != nil {
			return err
		}
		if !exists {
			delete(all.volumes, id)
			continue
		}
		if err := v.finishExpansion(found); err != nil {
			return err
		}
		if found.Held == "" || all.filling(found.Held) {
			continue
		}
		found.Held = ""
		if err := v.volumes.records.Put(string(id), *found); err != nil {
			return err
		}
	}
	return nil
}

// filling reports whether a snapshot of a group is not complete.
func (all records) filling(group volume.ID) bool {
	found := all.groups[group]
	return found != nil && slices.ContainsFunc(found.Members, func(id volume.ID) bool {
		member := all.snapshots[id]
		return member != nil && member.Filling
	})
}

// adoptSnapshots takes the snapshots over, but for those of a group that was
// not made whole.
func (v *Volumes) adoptSnapshots(ctx context.Context, all records) error {
	for _, id := range slices.Sorted(maps.Keys(all.snapshots)) {
		found := all.snapshots[id]
		exists, err := v.snapshots.exists(ctx, found)
		if err != nil {
			return err
		}
		if exists && found.Group != "" && all.groups[found.Group] == nil && !v.groups.known(found.Group) {
			klog.FromContext(ctx).Info("Deleting a snapshot of a group that was not made whole", logging.KeySnapshotID, id, logging.KeyGroupID, found.Group)
			exists, err = false, v.snapshots.discard(ctx, v.cfg.Step, found)
		}
		if err != nil {
			return err
		}
		if !exists {
			delete(all.snapshots, id)
		}
	}
	return nil
}

// exists reports whether the object of a record exists, or finishes its deletion
// when the contents are in the trash already.
func (s *store[V, P]) exists(ctx context.Context, found P) (bool, error) {
	id, _ := found.Key()
	contents := s.contents(found)
	if contents.Exists(id) {
		return true, nil
	}
	if contents.discarded(id) {
		return false, s.records.Delete(string(id))
	}
	logger := klog.FromContext(ctx).WithValues(logging.KeyVolumeID, id, logging.KeyPath, contents.Path(id))
	if err := checkDir(contents.data); err != nil {
		logger.Error(err, "Contents cannot be reached until their disk is back")
		return true, nil
	}
	logger.Error(nil, "Contents are missing; what they belong to can only be deleted")
	return true, nil
}

// finishExpansion makes contents as large as their record says.
func (v *Volumes) finishExpansion(found *volume.Volume) error {
	if found.Filling || !found.Form().Disk && v.homes.free[cmp.Or(found.Home, v.homes.root)] {
		return nil
	}
	err := v.volumes.contents(found).Resize(found.ID, found.Form(), found.Capacity)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // such a volume can only be deleted
	}
	return err
}

// take makes the memory say what the records say.
func (v *Volumes) take(all records) {
	before := v.charges()
	v.volumes.catalog.replace(all.volumes)
	v.snapshots.catalog.replace(all.snapshots)
	v.groups.catalog.replace(all.groups)
	v.unfilled.replace(all.volumes, all.snapshots)
	slots := map[string]int{}
	for _, found := range all.volumes {
		for _, node := range found.PublishedNodes() {
			slots[node]++
		}
	}
	v.slots.replace(slots)
	v.cfg.Pools.Exchange(before, v.charges())
}

// charges sums up what volumes and snapshots take from the pools, by kind.
func (v *Volumes) charges() map[string]int64 {
	sum := map[string]int64{}
	charge := func(node, pool string, size int64) {
		if kind := v.cfg.Placement.PoolOf(node, pool); kind != "" {
			sum[kind] += size
		}
	}
	for _, charged := range v.volumes.catalog.all() {
		charge(charged.Node, charged.Pool, charged.Capacity)
	}
	for _, charged := range v.snapshots.catalog.all() {
		charge(charged.Node, charged.Pool, charged.Size)
	}
	return sum
}

func reportDamaged(ctx context.Context, damaged []state.Damaged) {
	for _, d := range damaged {
		klog.FromContext(ctx).Error(d.Err, "Moved an unreadable record aside; its volume is unknown until the file is repaired and moved back",
			logging.KeyVolumeID, d.ID, logging.KeyPath, d.Path)
	}
}

func reportLeftovers(ctx context.Context, left Leftovers) {
	logger := klog.FromContext(ctx)
	for _, path := range left.Removed {
		logger.Info("Removed what an interrupted operation left", logging.KeyPath, path)
	}
	for _, path := range left.Kept {
		logger.Info("Kept a directory with contents that no record names; remove it by hand if it is not needed", logging.KeyPath, path)
	}
	for _, err := range left.Failed {
		logger.Error(err, "Could not remove what is left of a deleted volume; the next start tries again")
	}
}
