package idempotent

import (
	"context"
	"errors"

	"github.com/longshore-csi/longshore/csikit/keymutex"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// Volumes decorates a controller-side service. Calls that only read go
// straight through.
type Volumes struct {
	volume.Service

	names keymutex.Locks[string]
	ids   *locks
}

var _ volume.Service = (*Volumes)(nil)

// Create returns the volume of that name if it is what the request asks for,
// and makes it if there is none.
func (v *Volumes) Create(ctx context.Context, req *volume.CreateRequest) (*volume.Volume, error) {
	return maker[*volume.Volume]{
		find: v.Find,
		get:  v.Get,
		same: func(found *volume.Volume) error { return found.CheckSame(req) },
		from: req.Source.IDs(),
		make: func(ctx context.Context) (*volume.Volume, error) { return v.Service.Create(ctx, req) },
	}.once(ctx, &v.names, v.ids, req.Name)
}

// Delete answers nil for a volume that does not exist.
func (v *Volumes) Delete(ctx context.Context, id volume.ID) error {
	unlock, err := lock(ctx, v.ids, id)
	if err != nil {
		return err
	}
	defer unlock()
	return deleted(v.Service.Delete(ctx, id))
}

// Publish attaches once.
func (v *Volumes) Publish(ctx context.Context, req *volume.PublishRequest) (*volume.Volume, error) {
	unlock, err := lock(ctx, v.ids, req.ID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	found, err := v.Get(ctx, req.ID)
	if err != nil {
		return nil, err
	}
	verdict, err := found.CheckPublish(req)
	switch {
	case err != nil:
		return nil, err
	case verdict == volume.AlreadyDone:
		return found, nil
	}
	return v.Service.Publish(ctx, req)
}

// Unpublish answers nil for a volume that is not attached there, or does not
// exist: then it is not attached either.
func (v *Volumes) Unpublish(ctx context.Context, id volume.ID, node string) error {
	unlock, err := lock(ctx, v.ids, id)
	if err != nil {
		return err
	}
	defer unlock()
	found, err := v.Get(ctx, id)
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	attached := found.PublishedOn(node) != nil || (node == "" && len(found.Published) > 0)
	if !attached {
		return nil
	}
	return v.Service.Unpublish(ctx, id, node)
}

// Expand lets one call at a time through. A volume never shrinks, so the
// backend sees by itself what is done already.
func (v *Volumes) Expand(ctx context.Context, req *volume.ExpandRequest) (*volume.Volume, error) {
	unlock, err := lock(ctx, v.ids, req.ID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return v.Service.Expand(ctx, req)
}

// Modify changes what is not as asked for.
func (v *Volumes) Modify(ctx context.Context, id volume.ID, parameters map[string]string) error {
	unlock, err := lock(ctx, v.ids, id)
	if err != nil {
		return err
	}
	defer unlock()
	return v.Service.Modify(ctx, id, parameters)
}
