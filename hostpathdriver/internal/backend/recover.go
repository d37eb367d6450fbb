package backend

import (
	"context"
	"maps"
	"slices"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/state"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// recover fills the catalog and removes what a crash left behind.
func (v *Volumes) recover(ctx context.Context) error {
	loaded, damaged, err := v.records.Load()
	if err != nil {
		return err
	}
	reportDamaged(ctx, damaged)
	for _, id := range slices.Sorted(maps.Keys(loaded)) {
		if err := v.adopt(ctx, loaded[id]); err != nil {
			return err
		}
	}
	left, err := v.directory.Recover(ctx, func(id volume.ID) bool {
		return v.records.Exists(string(id)) || v.records.Quarantined(string(id))
	})
	if err != nil {
		return err
	}
	reportLeftovers(ctx, left)
	klog.FromContext(ctx).Info("Loaded volumes", logging.KeyCount, len(v.catalog.byID), logging.KeyPath, v.cfg.StateDir)
	return nil
}

// adopt takes one record over, or finishes its deletion when the contents are
// in the trash already.
func (v *Volumes) adopt(ctx context.Context, found volume.Volume) error {
	if !v.directory.Exists(found.ID) {
		if v.directory.discarded(found.ID) {
			return v.records.Delete(string(found.ID))
		}
		klog.FromContext(ctx).Error(nil, "Contents of a volume are missing; it can only be deleted",
			logging.KeyVolumeID, found.ID, logging.KeyPath, v.directory.Path(found.ID))
	}
	v.catalog.put(&found)
	v.cfg.Pools.Adopt(found.Pool, found.Capacity)
	for _, p := range found.Published {
		v.catalog.takeSlot(p.Node, 0)
	}
	return nil
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
