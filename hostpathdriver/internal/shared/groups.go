package shared

import (
	"context"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// Groups decorates a service that makes snapshots of several volumes.
type Groups struct {
	next volume.GroupService
	gate *gate
}

var _ volume.GroupService = (*Groups)(nil)

// CreateGroup implements volume.GroupService.
func (g *Groups) CreateGroup(ctx context.Context, req *volume.GroupRequest) (*volume.Group, error) {
	return in(ctx, g.gate, changes, func() (*volume.Group, error) { return g.next.CreateGroup(ctx, req) })
}

// DeleteGroup implements volume.GroupService.
func (g *Groups) DeleteGroup(ctx context.Context, id volume.ID, members []volume.ID) error {
	return change(ctx, g.gate, func() error { return g.next.DeleteGroup(ctx, id, members) })
}

// GetGroup implements volume.GroupService.
func (g *Groups) GetGroup(ctx context.Context, id volume.ID, members []volume.ID) (*volume.Group, error) {
	return in(ctx, g.gate, reads, func() (*volume.Group, error) { return g.next.GetGroup(ctx, id, members) })
}

// FindGroup implements volume.GroupService.
func (g *Groups) FindGroup(ctx context.Context, name string) (*volume.Group, error) {
	return in(ctx, g.gate, reads, func() (*volume.Group, error) { return g.next.FindGroup(ctx, name) })
}
