package shared

import (
	"context"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// Volumes decorates a controller-side service.
type Volumes struct {
	next volume.Service
	gate *gate
}

var _ volume.Service = (*Volumes)(nil)

// Create implements volume.Service.
func (v *Volumes) Create(ctx context.Context, req *volume.CreateRequest) (*volume.Volume, error) {
	return in(ctx, v.gate, changes, func() (*volume.Volume, error) { return v.next.Create(ctx, req) })
}

// Delete implements volume.Service.
func (v *Volumes) Delete(ctx context.Context, id volume.ID) error {
	return change(ctx, v.gate, func() error { return v.next.Delete(ctx, id) })
}

// Get implements volume.Service.
func (v *Volumes) Get(ctx context.Context, id volume.ID) (*volume.Volume, error) {
	return in(ctx, v.gate, reads, func() (*volume.Volume, error) { return v.next.Get(ctx, id) })
}

// Find implements volume.Service.
func (v *Volumes) Find(ctx context.Context, name string) (*volume.Volume, error) {
	return in(ctx, v.gate, reads, func() (*volume.Volume, error) { return v.next.Find(ctx, name) })
}

// List implements volume.Service. Pages are of the moment at which this
// process was asked for the first one, whoever changes something between
// them; a token of another process is an ErrBadToken.
func (v *Volumes) List(ctx context.Context, req volume.ListRequest) (*volume.Page, error) {
	return in(ctx, v.gate, reads, func() (*volume.Page, error) { return v.next.List(ctx, req) })
}

// Capacity implements volume.Service.
func (v *Volumes) Capacity(ctx context.Context, req *volume.CapacityRequest) (volume.Capacity, error) {
	return in(ctx, v.gate, reads, func() (volume.Capacity, error) { return v.next.Capacity(ctx, req) })
}

// Publish implements volume.Service.
func (v *Volumes) Publish(ctx context.Context, req *volume.PublishRequest) (*volume.Volume, error) {
	return in(ctx, v.gate, changes, func() (*volume.Volume, error) { return v.next.Publish(ctx, req) })
}

// Unpublish implements volume.Service.
func (v *Volumes) Unpublish(ctx context.Context, id volume.ID, node string) error {
	return change(ctx, v.gate, func() error { return v.next.Unpublish(ctx, id, node) })
}

// Expand implements volume.Service.
func (v *Volumes) Expand(ctx context.Context, req *volume.ExpandRequest) (*volume.Volume, error) {
	return in(ctx, v.gate, changes, func() (*volume.Volume, error) { return v.next.Expand(ctx, req) })
}

// Modify implements volume.Service.
func (v *Volumes) Modify(ctx context.Context, id volume.ID, parameters map[string]string) error {
	return change(ctx, v.gate, func() error { return v.next.Modify(ctx, id, parameters) })
}

// Health implements volume.Service.
func (v *Volumes) Health(ctx context.Context, id volume.ID) (volume.Health, error) {
	return in(ctx, v.gate, reads, func() (volume.Health, error) { return v.next.Health(ctx, id) })
}

// ListHealth implements volume.Service, with pages as those of List.
func (v *Volumes) ListHealth(ctx context.Context, req volume.ListRequest) (*volume.HealthPage, error) {
	return in(ctx, v.gate, reads, func() (*volume.HealthPage, error) { return v.next.ListHealth(ctx, req) })
}

// Support implements volume.Service. It is the same in every process.
func (v *Volumes) Support() volume.Support { return v.next.Support() }
