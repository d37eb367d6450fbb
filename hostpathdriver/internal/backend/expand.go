package backend

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// Expand implements volume.Service. The record says first how large the volume
// is to be: what a crash leaves is a file that is too small, and the next start
// makes it as large as the record says.
func (v *Volumes) Expand(ctx context.Context, req *volume.ExpandRequest) (*volume.Volume, error) {
	before, err := v.volumes.catalog.get(req.ID)
	if err != nil {
		return nil, err
	}
	size, verdict, err := before.CheckExpand(req, v.cfg.MaxSize)
	if err != nil || verdict == volume.AlreadyDone {
		return before, err
	}
	if err := v.checkOffline(before); err != nil {
		return nil, err
	}
	// A copy takes the size that its record has, and that is charged for it.
	if err := v.unfilled.checkSource(*before.Origin()); err != nil {
		return nil, fmt.Errorf("expand volume %q: %w: %w", req.ID, volume.ErrBusy, err)
	}
	pool, more := v.cfg.Placement.PoolOf(before.Node, before.Pool), size-before.Capacity
	if pool != "" {
		if _, err := v.cfg.Pools.Reserve(pool, more); err != nil {
			return nil, fmt.Errorf("expand volume %q: %w", req.ID, err)
		}
	}
	after := before.Clone()
	after.Capacity = size
	if err := v.grow(before, after); err != nil {
		v.cfg.Pools.Release(pool, more)
		return nil, err
	}
	v.volumes.catalog.put(after)
	klog.FromContext(ctx).V(2).Info("Expanded volume", logging.KeyVolumeID, req.ID, logging.KeyCapacity, size)
	return after.Clone(), nil
}

// checkOffline refuses to expand a volume in use where expansion is offline (CSI v1.13,
// "VolumeExpansion" OFFLINE). The error is an ErrInUse.
func (v *Volumes) checkOffline(expanded *volume.Volume) error {
	if !v.cfg.OfflineExpansion {
		return nil
	}
	staged, err := v.stagedOn(expanded)
	if err != nil {
		return err
	}
	users := slices.Compact(slices.Sorted(slices.Values(append(staged, expanded.PublishedNodes()...))))
	if len(users) == 0 {
		return nil
	}
	return fmt.Errorf("expand volume %q: it is attached, staged or published on node %s, and the driver expands only volumes that are not: %w",
		expanded.ID, strings.Join(users, ", "), volume.ErrInUse)
}

// grow makes record and contents larger, or leaves both as they were.
func (v *Volumes) grow(before, after *volume.Volume) error {
	v.cfg.Step.at("expand:record")
	err := v.volumes.records.Put(string(after.ID), *after)
	if err == nil {
		v.cfg.Step.at("expand:contents")
		err = v.volumes.contents(after).Resize(after.ID, after.Form(), after.Capacity)
	}
	if err != nil {
		err = errors.Join(err, v.volumes.records.Put(string(before.ID), *before))
	}
	return err
}

// Expand implements volume.NodeService.
func (n *Node) Expand(ctx context.Context, req *volume.NodeExpandRequest) (int64, error) {
	known := n.get(req.ID)
	if known == nil || !known.At(req.Path) {
		return 0, fmt.Errorf("volume %q at %q: %w", req.ID, req.Path, volume.ErrNotFound)
	}
	if known.Ephemeral != nil {
		return 0, fmt.Errorf("volume %q is an inline volume, which keeps its size: %w", req.ID, volume.ErrInvalid)
	}
	persistent, err := n.lookupPersistent(req.ID)
	if err != nil {
		return 0, err
	}
	if req.Capability != nil {
		if err := persistent.CheckAccess(*req.Capability); err != nil {
			return 0, err
		}
	}
	size, err := n.sizeToShow(ctx, req, persistent.Capacity)
	if err != nil {
		return 0, err
	}
	return size, n.grow(ctx, known)
}

// sizeToShow is the size of the volume, which becomes larger here where the CO asks
// the node alone.
func (n *Node) sizeToShow(ctx context.Context, req *volume.NodeExpandRequest, size int64) (int64, error) {
	if largest := n.cfg.MaxExpandSize; largest > 0 && max(size, req.Range.Required) > largest {
		return 0, fmt.Errorf("expand volume %q on node %q: %d bytes exceed the largest volume %d of this node: %w",
			req.ID, n.cfg.NodeID, max(size, req.Range.Required), largest, volume.ErrOutOfRange)
	}
	if n.cfg.ExpandVolume != nil && size < req.Range.Required {
		expanded, err := n.cfg.ExpandVolume(ctx, &volume.ExpandRequest{ID: req.ID, Range: req.Range, Capability: req.Capability})
		if err != nil {
			return 0, err
		}
		size = expanded.Capacity
	}
	if !req.Range.Allow(size) {
		return 0, fmt.Errorf("capacity range: volume %q has %d bytes, asked for is at least %d and at most %d (0 is no limit): %w",
			req.ID, size, req.Range.Required, req.Range.Limit, volume.ErrOutOfRange)
	}
	return size, nil
}
