// Package idempotent lets a CO call again. Its decorators answer a call whose
// work is done, refuse one that contradicts, and let one call at a time
// through per volume name and volume id. The rules themselves are pure
// functions of package volume.
//
// It is written once for every backend. Do not put work of a backend here:
// what it wraps sees only calls that change something.
package idempotent

import (
	"context"
	"errors"
	"fmt"

	"github.com/longshore-csi/longshore/csikit/keymutex"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// Volumes decorates a controller-side service. Calls that only read go
// straight through.
type Volumes struct {
	volume.Service

	names keymutex.Locks[string]
	ids   keymutex.Locks[volume.ID]
}

var _ volume.Service = (*Volumes)(nil)

// NewVolumes decorates next.
func NewVolumes(next volume.Service) *Volumes {
	return &Volumes{Service: next}
}

// Create returns the volume of that name if it is what the request asks for,
// and makes it if there is none.
func (v *Volumes) Create(ctx context.Context, req *volume.CreateRequest) (*volume.Volume, error) {
	unlock, err := lock(ctx, &v.names, req.Name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	found, err := v.Find(ctx, req.Name)
	if err == nil {
		found, err = v.settled(ctx, found.ID)
	}
	if errors.Is(err, volume.ErrNotFound) {
		return v.Service.Create(ctx, req)
	}
	if err != nil {
		return nil, err
	}
	if err := found.CheckSame(req); err != nil {
		return nil, err
	}
	return found, nil
}

// settled waits for what is going on with a volume, a deletion above all, and
// looks again.
func (v *Volumes) settled(ctx context.Context, id volume.ID) (*volume.Volume, error) {
	unlock, err := lock(ctx, &v.ids, id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return v.Get(ctx, id)
}

// Delete answers nil for a volume that does not exist.
func (v *Volumes) Delete(ctx context.Context, id volume.ID) error {
	unlock, err := lock(ctx, &v.ids, id)
	if err != nil {
		return err
	}
	defer unlock()
	err = v.Service.Delete(ctx, id)
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	return err
}

// Publish attaches once.
func (v *Volumes) Publish(ctx context.Context, req *volume.PublishRequest) (*volume.Volume, error) {
	unlock, err := lock(ctx, &v.ids, req.ID)
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
	unlock, err := lock(ctx, &v.ids, id)
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
	unlock, err := lock(ctx, &v.ids, req.ID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return v.Service.Expand(ctx, req)
}

// Modify changes what is not as asked for.
func (v *Volumes) Modify(ctx context.Context, id volume.ID, parameters map[string]string) error {
	unlock, err := lock(ctx, &v.ids, id)
	if err != nil {
		return err
	}
	defer unlock()
	return v.Service.Modify(ctx, id, parameters)
}

// lock takes turns. Who waits longer than the deadline of the call gets an
// ErrBusy, which tells the CO to call again.
func lock[K ~string](ctx context.Context, locks *keymutex.Locks[K], key K) (func(), error) {
	unlock, err := locks.Lock(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("volume %q: %w: %w", key, volume.ErrBusy, err)
	}
	return unlock, nil
}
