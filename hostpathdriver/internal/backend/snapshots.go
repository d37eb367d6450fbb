package backend

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/contents"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// CreateSnapshot implements driverkit.Snapshotter.
func (c *Controller) CreateSnapshot(ctx context.Context, req *driverkit.CreateSnapshotRequest) (*driverkit.Snapshot, error) {
	if err := c.copies.Wait(ctx, snapshotCopy(req.Name)); err != nil {
		return nil, err
	}
	if found := c.snapshots.find(req.Name); found != nil {
		return snapshotOf(found), nil
	}
	if err := volume.CheckSnapshotParameters(req.Parameters); err != nil {
		return nil, err
	}
	source, err := c.volumes.get(req.Volume)
	if err != nil {
		return nil, err
	}
	if !req.Topology.Allows(volume.Segments(source.Node)) {
		return nil, fmt.Errorf("snapshot of volume %q: it is on node %q, which the accessibility requirements exclude: %w", source.ID, source.Node, driverkit.ErrExhausted)
	}
	err = c.copies.Do(ctx, snapshotCopy(req.Name), func(ctx context.Context) error {
		created := &volume.Snapshot{Name: req.Name, Parameters: req.Parameters}
		if err := c.planSnapshot(created, source); err != nil {
			return err
		}
		if err := c.takeSnapshot(ctx, created, source); err != nil {
			return undone(err, c.undoSnapshot(ctx, created))
		}
		return nil
	}, volumeKey(source.ID))
	if err != nil {
		return nil, err
	}
	found := c.snapshots.find(req.Name)
	if found == nil {
		return nil, fmt.Errorf("snapshot named %q: was deleted since: %w", req.Name, driverkit.ErrBusy)
	}
	return snapshotOf(found), nil
}

// planSnapshot completes the record of a snapshot, and charges the pool of the volume for it.
func (c *Controller) planSnapshot(created *volume.Snapshot, source *volume.Volume) error {
	created.ID, created.Source, created.Size, created.Created = newID(), source.ID, source.Capacity, now()
	created.Form, created.Node, created.Root = source.Form(), source.Node, source.Root
	if source.Pool == "" {
		return nil
	}
	var err error
	if created.Pool, err = c.pools(source.Node).Reserve(source.Pool, created.Size); err != nil {
		return fmt.Errorf("create snapshot named %q: %w", created.Name, err)
	}
	return nil
}

// takeSnapshot copies a volume, and makes the snapshot exist.
func (c *Controller) takeSnapshot(ctx context.Context, created *volume.Snapshot, source *volume.Volume) error {
	store := c.snapshotContents(created)
	if err := c.copy(ctx, c.originOf(source), store, created.ID, created.Form); err != nil {
		return err
	}
	return c.addSnapshot(ctx, created, store)
}

// addSnapshot makes a snapshot exist whose copy is complete.
func (c *Controller) addSnapshot(ctx context.Context, created *volume.Snapshot, store *contents.Store) error {
	if err := c.snapshots.adopt(created, store, c.cfg.Step); err != nil {
		return err
	}
	klog.FromContext(ctx).V(2).Info("Created snapshot", logging.KeySnapshotID, created.ID, logging.KeyVolumeID, created.Source)
	return nil
}

// undoSnapshot removes what is there of a snapshot that could not be made.
func (c *Controller) undoSnapshot(ctx context.Context, created *volume.Snapshot) error {
	ctx, cancel := withUndoTimeout(ctx)
	defer cancel()
	store := c.snapshotContents(created)
	if err := c.snapshots.remove(created.ID); err != nil { // The record may exist although writing it was reported as failed.
		return err
	}
	c.pools(created.Node).Release(created.Pool, created.Size)
	return errors.Join(store.Copies().Remove(ctx, created.ID), store.Discard(ctx, created.ID), store.Purge(ctx, created.ID))
}

// DeleteSnapshot implements driverkit.Snapshotter.
func (c *Controller) DeleteSnapshot(ctx context.Context, req *driverkit.DeleteSnapshotRequest) error {
	doomed, err := c.snapshots.get(req.ID)
	if err != nil {
		return cmp.Or(c.purge(ctx, contents.Snapshots, req.ID), err) // ErrNotFound only when nothing is left
	}
	if doomed.Group != "" {
		return fmt.Errorf("delete snapshot %q: it is deleted with group %q only: %w", req.ID, doomed.Group, driverkit.ErrInvalid)
	}
	return c.removeSnapshot(ctx, doomed)
}

// removeSnapshot deletes a snapshot, whatever group it belongs to.
func (c *Controller) removeSnapshot(ctx context.Context, doomed *volume.Snapshot) error {
	if err := c.checkSource(snapshotKey(doomed.ID)); err != nil {
		return fmt.Errorf("delete snapshot %q: %w", doomed.ID, err)
	}
	store := c.snapshotContents(doomed)
	c.cfg.Step.at("delete:discard")
	if err := store.Discard(ctx, doomed.ID); err != nil {
		return err
	}
	c.cfg.Step.at("delete:record")
	if err := c.snapshots.remove(doomed.ID); err != nil {
		return err
	}
	c.bin.owe(store, doomed.ID, func() { c.pools(doomed.Node).Release(doomed.Pool, doomed.Size) })
	klog.FromContext(ctx).V(2).Info("Deleted snapshot", logging.KeySnapshotID, doomed.ID)
	c.cfg.Step.at("delete:purge")
	return c.bin.purge(ctx, store, doomed.ID)
}

// GetSnapshot implements driverkit.Snapshotter.
func (c *Controller) GetSnapshot(_ context.Context, req *driverkit.GetSnapshotRequest) (*driverkit.Snapshot, error) {
	found, err := c.snapshots.get(req.ID)
	if err != nil {
		return nil, err
	}
	return snapshotOf(found), nil
}

// ListSnapshots returns a page of the snapshots.
func (c *Controller) ListSnapshots(_ context.Context, req *driverkit.ListSnapshotsRequest) (*driverkit.Page[*driverkit.Snapshot], error) {
	return page(c.snapshots.page(req.After, req.Limit, func(s *volume.Snapshot) bool {
		return (req.Volume == "" || s.Source == req.Volume) && c.complete(s)
	}), snapshotOf), nil
}

// complete reports whether the group of a snapshot, if any, exists: its members exist with it.
func (c *Controller) complete(s *volume.Snapshot) bool {
	if s.Group == "" {
		return true
	}
	_, err := c.groups.get(s.Group)
	return err == nil || c.groups.records.Quarantined(s.Group)
}

func snapshotOf(s *volume.Snapshot) *driverkit.Snapshot {
	return &driverkit.Snapshot{ID: s.ID, Volume: s.Source, Group: s.Group, Size: s.Size, Created: s.Created, Ready: true, Topology: volume.Segments(s.Node)}
}
