package backend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// GetSnapshot implements volume.SnapshotService.
func (v *Volumes) GetSnapshot(_ context.Context, id volume.ID) (*volume.Snapshot, error) {
	return v.snapshots.catalog.get(id)
}

// FindSnapshot implements volume.SnapshotService.
func (v *Volumes) FindSnapshot(_ context.Context, name string) (*volume.Snapshot, error) {
	return v.snapshots.catalog.find(name)
}

// ListSnapshots implements volume.SnapshotService.
func (v *Volumes) ListSnapshots(_ context.Context, req volume.SnapshotListRequest) (*volume.SnapshotPage, error) {
	list, next, err := v.snapshots.catalog.page(req.ListRequest, func(s *volume.Snapshot) bool {
		return req.Source == "" || s.Source == req.Source
	})
	if err != nil {
		return nil, err
	}
	return &volume.SnapshotPage{Snapshots: list, Next: next}, nil
}

// SnapshotDisk returns where the blocks of a snapshot are.
func SnapshotDisk(stateDir string, s *volume.Snapshot) *volume.SnapshotDisk {
	disk := &volume.SnapshotDisk{ID: s.ID, Volume: s.Source, Size: s.Size, Filling: s.Filling}
	if s.Form.Disk {
		disk.Path = contentsAt(cmp.Or(s.Home, stateDir), snapshotsDir, nil, nil).Disk(s.ID)
	}
	return disk
}

// CreateSnapshot implements volume.SnapshotService. The snapshot is filled
// later.
func (v *Volumes) CreateSnapshot(ctx context.Context, req *volume.SnapshotRequest) (*volume.Snapshot, error) {
	if err := volume.CheckSnapshotParameters(req.Parameters); err != nil {
		return nil, err
	}
	source, err := v.volumes.catalog.get(req.Source)
	if err != nil {
		return nil, err
	}
	if !req.Requirements.Allow(source.Node) {
		return nil, fmt.Errorf("snapshot of volume %q: it is on node %q, which the accessibility requirements exclude: %w", source.ID, source.Node, volume.ErrExhausted)
	}
	return v.addSnapshot(ctx, source, &volume.Snapshot{Name: req.Name, Parameters: req.Parameters})
}

// addSnapshot makes an empty snapshot of a volume, and charges the pool of the
// volume for it.
func (v *Volumes) addSnapshot(ctx context.Context, source *volume.Volume, created *volume.Snapshot) (*volume.Snapshot, error) {
	if err := source.CheckFilled(); err != nil {
		return nil, err
	}
	created.ID, created.Source, created.Size, created.Created = newID(), source.ID, source.Capacity, time.Now().UTC()
	created.Form, created.Node, created.Home, created.Filling = source.Form(), source.Node, source.Home, true
	if charged := v.cfg.Placement.PoolOf(source.Node, source.Pool); charged != "" {
		var err error
		if created.Pool, err = v.cfg.Pools.Reserve(charged, created.Size); err != nil {
			return nil, fmt.Errorf("create snapshot named %q: %w", created.Name, err)
		}
	}
	err := v.snapshots.add(v.cfg.Step, created, func() error { return v.snapshots.contents(created).Begin(created.ID, created.Form, 0) })
	if err != nil {
		v.cfg.Pools.Release(created.Pool, created.Size)
		return nil, err
	}
	v.unfilled.note(created.ID, &volume.Source{Volume: source.ID}, true)
	klog.FromContext(ctx).V(2).Info("Created snapshot", logging.KeySnapshotID, created.ID, logging.KeyVolumeID, source.ID)
	return created.Clone(), nil
}

// DeleteSnapshot implements volume.SnapshotService.
func (v *Volumes) DeleteSnapshot(ctx context.Context, id volume.ID) error {
	gone, err := v.snapshots.catalog.get(id)
	if err == nil && gone.Group != "" {
		return fmt.Errorf("delete snapshot %q: it goes with group %q only: %w", id, gone.Group, volume.ErrInvalid)
	}
	return v.removeSnapshot(ctx, id)
}

// removeSnapshot deletes a snapshot, whatever group it belongs to. An unknown
// one may have contents left from an interrupted call; they go, and the answer
// is ErrNotFound.
func (v *Volumes) removeSnapshot(ctx context.Context, id volume.ID) error {
	gone, err := v.snapshots.catalog.get(id)
	if errors.Is(err, volume.ErrNotFound) {
		if purgeErr := v.homes.purge(ctx, snapshotsDir, id); purgeErr != nil {
			return purgeErr
		}
	}
	if err != nil {
		return err
	}
	if err := v.unfilled.checkSource(*gone.Origin()); err != nil {
		return fmt.Errorf("delete snapshot %q: %w", id, err)
	}
	if err := v.snapshots.discard(ctx, v.cfg.Step, gone); err != nil {
		return err
	}
	v.cfg.Pools.Release(v.cfg.Placement.PoolOf(gone.Node, gone.Pool), gone.Size)
	klog.FromContext(ctx).V(2).Info("Deleted snapshot", logging.KeySnapshotID, id)
	v.unfilled.note(id, nil, false)
	v.forgetCopy(ctx, id)
	v.cfg.Step.at("delete:purge")
	return v.snapshots.contents(gone).Purge(ctx, id)
}
