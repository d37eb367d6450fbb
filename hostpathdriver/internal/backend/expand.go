package backend

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// Expand makes a volume larger. The record says first how large the volume is to be: a crash leaves a file that is too small, and the next start
// makes it as large as the record says.
func (c *Controller) Expand(ctx context.Context, req *driverkit.ExpandRequest) (*driverkit.Expanded, error) {
	found, err := c.volumes.get(req.ID)
	if err != nil {
		return nil, err
	}
	if req.Capability != nil {
		if err := found.CheckUse(*req.Capability); err != nil {
			return nil, err
		}
	}
	form := found.Form()
	answer := &driverkit.Expanded{Size: found.Capacity, OnNode: form.Disk && c.cfg.NodeExpansion}
	switch {
	case req.Size.Limit > 0 && found.Capacity > req.Size.Limit:
		return nil, fmt.Errorf("capacity_range: limit_bytes %d is below the %d bytes that volume %q has, and volumes do not shrink: %w",
			req.Size.Limit, found.Capacity, req.ID, driverkit.ErrOutOfRange)
	case found.Capacity >= req.Size.Required:
		return answer, errors.Join(c.finishExpansion(found), c.changed(ctx, req.ID))
	}
	if answer.Size, err = form.Size(req.Size, c.cfg.MaxSize); err != nil {
		return nil, err
	}
	if err := c.checkOffline(found); err != nil {
		return nil, err
	}
	// A copy takes the size that its record has, and that is charged for it.
	if err := c.checkSource(volumeKey(req.ID)); err != nil {
		return nil, fmt.Errorf("expand volume %q: %w: %w", req.ID, driverkit.ErrBusy, err)
	}
	if err := c.grow(found, answer.Size); err != nil {
		return nil, err
	}
	klog.FromContext(ctx).V(2).Info("Expanded volume", logging.KeyVolumeID, req.ID, logging.KeyCapacity, answer.Size)
	return answer, c.changed(ctx, req.ID)
}

// checkOffline refuses to expand a volume in use where expansion is offline, with an ErrInUse (CSI v1.13, "VolumeExpansion" OFFLINE).
func (c *Controller) checkOffline(v *volume.Volume) error {
	if !c.cfg.OfflineExpansion {
		return nil
	}
	staged, err := c.cfg.usedOn(v.ID)
	if err != nil {
		return err
	}
	users := slices.Compact(slices.Sorted(slices.Values(append(staged, v.PublishedNodes()...))))
	if len(users) == 0 {
		return nil
	}
	return fmt.Errorf("expand volume %q: it is attached, staged or published on node %s, and the driver expands only volumes that are not: %w",
		v.ID, strings.Join(users, ", "), driverkit.ErrInUse)
}

// grow makes record and contents larger, or leaves both as they were.
func (c *Controller) grow(before *volume.Volume, size int64) error {
	pools, more := c.pools(before.Node), size-before.Capacity
	if before.Pool != "" {
		if _, err := pools.Reserve(before.Pool, more); err != nil {
			return fmt.Errorf("expand volume %q: %w", before.ID, err)
		}
	}
	after := before.Clone()
	after.Capacity, after.Before = size, before.Capacity
	c.cfg.Step.at("expand:record")
	err := c.volumes.save(after)
	if err == nil {
		err = c.finishExpansion(after)
	}
	if err != nil {
		pools.Release(before.Pool, more)
		return exhausted(errors.Join(err, c.volumes.save(before)))
	}
	return nil
}

// finishExpansion makes the contents of a volume as large as its record says, if it says that they are not.
func (c *Controller) finishExpansion(v *volume.Volume) error {
	if v.Before == 0 {
		return nil
	}
	c.cfg.Step.at("expand:contents")
	if err := c.cfg.contentsOf(v).Grow(v.ID, v.Form(), v.Before, v.Capacity); err != nil {
		return err
	}
	done := v.Clone()
	done.Before = 0
	c.cfg.Step.at("expand:done")
	return c.volumes.save(done)
}

// Modify changes the record of a volume; nodes apply it, see Node.Reconcile.
func (c *Controller) Modify(ctx context.Context, req *driverkit.ModifyRequest) (*driverkit.Modified, error) {
	found, err := c.volumes.get(req.ID)
	if err != nil {
		return nil, err
	}
	if err := c.cfg.Mutable.Check(req.Parameters, found.Form()); err != nil {
		return nil, err
	}
	if !found.Modified(req.Parameters) {
		modified := found.Clone()
		if modified.MutableParameters == nil {
			modified.MutableParameters = map[string]string{}
		}
		maps.Copy(modified.MutableParameters, req.Parameters)
		c.cfg.Step.at("modify:record")
		if err := c.volumes.save(modified); err != nil {
			return nil, err
		}
		klog.FromContext(ctx).V(2).Info("Modified volume", logging.KeyVolumeID, req.ID)
	}
	return &driverkit.Modified{}, c.changed(ctx, req.ID)
}

// changed lets the node of this process apply a change before the call is answered.
func (c *Controller) changed(ctx context.Context, id string) error {
	if c.cfg.Changed == nil {
		return nil
	}
	return c.cfg.Changed(ctx, id)
}
