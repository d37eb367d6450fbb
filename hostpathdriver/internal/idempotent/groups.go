package idempotent

import (
	"context"
	"errors"
	"slices"

	"github.com/longshore-csi/longshore/csikit/keymutex"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// Groups decorates a service that makes snapshots of several volumes.
type Groups struct {
	volume.GroupService

	snapshots volume.SnapshotService
	names     keymutex.Locks[string]
	ids       *locks
}

var _ volume.GroupService = (*Groups)(nil)

// CreateGroup returns the group of that name if it is what the request asks
// for, and makes it if there is none.
func (g *Groups) CreateGroup(ctx context.Context, req *volume.GroupRequest) (*volume.Group, error) {
	return maker[*volume.Group]{
		find: g.FindGroup,
		get:  func(ctx context.Context, id volume.ID) (*volume.Group, error) { return g.GetGroup(ctx, id, nil) },
		same: func(found *volume.Group) error { return found.CheckSame(req) },
		from: req.Sources,
		make: func(ctx context.Context) (*volume.Group, error) { return g.GroupService.CreateGroup(ctx, req) },
	}.once(ctx, &g.names, g.ids, req.Name)
}

// DeleteGroup answers nil for a group that does not exist. A group that is
// deleted in part has only some of its members.
func (g *Groups) DeleteGroup(ctx context.Context, id volume.ID, members []volume.ID) error {
	touched := append([]volume.ID{id}, members...)
	for _, member := range members {
		found, err := g.snapshots.GetSnapshot(ctx, member)
		if err == nil {
			touched = append(touched, found.Source) // it may have to be released
		} else if !errors.Is(err, volume.ErrNotFound) {
			return err
		}
	}
	unlock, err := lockAll(ctx, g.ids, touched...)
	if err != nil {
		return err
	}
	defer unlock()
	return deleted(g.GroupService.DeleteGroup(ctx, id, members))
}

// around returns what else changes when the contents of a group are complete:
// its snapshots are, and its volumes are released.
func (g *Groups) around(ctx context.Context, id volume.ID) ([]volume.ID, error) {
	found, err := g.GetGroup(ctx, id, nil)
	if errors.Is(err, volume.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	touched := slices.Clone(found.Members)
	for _, s := range found.Snapshots {
		touched = append(touched, s.Source)
	}
	return touched, nil
}
