package backend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/state"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// Refresh reads the records again, because another process has changed them.
// What that process did is complete.
func (v *Volumes) Refresh(ctx context.Context) error {
	loaded, damaged, err := v.records.Load()
	if err != nil {
		return fmt.Errorf("read volumes in %s again: %w", v.cfg.StateDir, err)
	}
	reportDamaged(ctx, damaged)
	v.take(loaded)
	klog.FromContext(ctx).V(4).Info("Read volumes again", logging.KeyCount, len(loaded), logging.KeyPath, v.cfg.StateDir)
	return nil
}

// Recover reads the records, and brings the disk in line with them after a
// process that may have been killed in the middle of a call. No call may be
// under way in any process.
func (v *Volumes) Recover(ctx context.Context) error {
	if err := v.recover(ctx); err != nil {
		return fmt.Errorf("recover volumes in %s: %w", v.cfg.StateDir, err)
	}
	return nil
}

func (v *Volumes) recover(ctx context.Context) error {
	loaded, damaged, err := v.records.Load()
	if err != nil {
		return err
	}
	reportDamaged(ctx, damaged)
	for _, id := range slices.Sorted(maps.Keys(loaded)) {
		found := loaded[id]
		known, err := v.adopt(ctx, &found)
		if err != nil {
			return err
		}
		if !known {
			delete(loaded, id)
		}
	}
	v.take(loaded)
	left, err := v.directory.Recover(ctx, func(id volume.ID) bool {
		return v.records.Exists(string(id)) || v.records.Quarantined(string(id))
	})
	if err != nil {
		return err
	}
	reportLeftovers(ctx, left)
	klog.FromContext(ctx).Info("Loaded volumes", logging.KeyCount, len(loaded), logging.KeyPath, v.cfg.StateDir)
	return nil
}

// adopt tells whether a record stands for a volume, or finishes its deletion
// when the contents are in the trash already, or its expansion.
func (v *Volumes) adopt(ctx context.Context, found *volume.Volume) (known bool, err error) {
	id := found.ID
	if v.directory.Exists(id) {
		return true, v.finishExpansion(found)
	}
	if v.directory.discarded(id) {
		return false, v.records.Delete(string(id))
	}
	klog.FromContext(ctx).Error(nil, "Contents of a volume are missing; it can only be deleted",
		logging.KeyVolumeID, id, logging.KeyPath, v.directory.Path(id))
	return true, nil
}

// finishExpansion makes the file of a block volume as large as its record says.
func (v *Volumes) finishExpansion(found *volume.Volume) error {
	if found.Access() != volume.AccessBlock {
		return nil
	}
	err := v.directory.GrowDisk(found.ID, found.Capacity)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // such a volume can only be deleted
	}
	return err
}

// take makes the memory say what the records say.
func (v *Volumes) take(loaded map[string]volume.Volume) {
	found := make(map[volume.ID]*volume.Volume, len(loaded))
	for _, read := range loaded {
		found[read.ID] = &read
	}
	before := v.charges(v.catalog.all())
	v.catalog.replace(found)
	v.cfg.Pools.Exchange(before, v.charges(v.catalog.all()))
}

// charges sums up what volumes take from the pools, by kind.
func (v *Volumes) charges(volumes []*volume.Volume) map[string]int64 {
	sum := map[string]int64{}
	for _, charged := range volumes {
		if kind := v.cfg.Placement.PoolOf(charged); kind != "" {
			sum[kind] += charged.Capacity
		}
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
