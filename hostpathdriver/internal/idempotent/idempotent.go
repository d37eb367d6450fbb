// Package idempotent lets a CO repeat calls. Its decorators answer a call whose
// work is done, refuse a call that contradicts an earlier one, and let one call at
// a time through per name and id. The rules themselves are pure functions of
// package volume.
//
// The package is written once for every backend. Do not put work of a backend here:
// the wrapped backend sees only calls that change something.
package idempotent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/longshore-csi/longshore/csikit/keymutex"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// Services are the decorated services of one backend.
type Services struct {
	*Volumes
	*Snapshots
	*Groups
	*Copies
}

var _ volume.Services = (*Services)(nil)

// New decorates next.
func New(next volume.Services) *Services {
	ids := &locks{}
	groups := &Groups{GroupService: next, snapshots: next, ids: ids}
	return &Services{
		Volumes:   &Volumes{Service: next, ids: ids},
		Snapshots: &Snapshots{SnapshotService: next, ids: ids},
		Groups:    groups,
		Copies:    &Copies{CopyService: next, ids: ids, around: groups.around},
	}
}

// locks are the locks of ids: volumes, snapshots and groups. A call that needs the
// lock of a name, too, takes that one first, and a call that needs several ids takes
// them at once, in one order: so there is no deadlock.
type locks = keymutex.Locks[volume.ID]

// lock waits for a lock until the deadline of the call, and then returns ErrBusy, so
// that the CO retries.
func lock[K ~string](ctx context.Context, locks *keymutex.Locks[K], key K) (func(), error) {
	unlock, err := locks.Lock(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("%q: %w: %w", key, volume.ErrBusy, err)
	}
	return unlock, nil
}

// lockAll is lock for several ids, which may have duplicates.
func lockAll(ctx context.Context, ids *locks, list ...volume.ID) (func(), error) {
	var held []func()
	unlock := func() {
		for _, u := range held {
			u()
		}
	}
	for _, id := range slices.Compact(slices.Sorted(slices.Values(list))) {
		u, err := lock(ctx, ids, id)
		if err != nil {
			unlock()
			return nil, err
		}
		held = append(held, u)
	}
	return unlock, nil
}

// maker creates objects of one kind that have a name.
type maker[T interface{ Key() (volume.ID, string) }] struct {
	find func(ctx context.Context, name string) (T, error)
	get  func(ctx context.Context, id volume.ID) (T, error)
	// same reports whether an existing object matches the request.
	same func(T) error
	// from are the ids of the sources. They are locked until the object is made, so
	// that no source is deleted meanwhile.
	from []volume.ID
	make func(ctx context.Context) (T, error)
}

// once returns the object with that name if it matches the request, and makes it if
// it does not exist.
func (m maker[T]) once(ctx context.Context, names *keymutex.Locks[string], ids *locks, name string) (none T, err error) {
	unlock, err := lock(ctx, names, name)
	if err != nil {
		return none, err
	}
	defer unlock()
	found, err := m.waitAndReload(ctx, ids, name)
	if err == nil {
		if err := m.same(found); err != nil {
			return none, err
		}
		return found, nil
	}
	if !errors.Is(err, volume.ErrNotFound) {
		return none, err
	}
	unlockSources, err := lockAll(ctx, ids, m.from...)
	if err != nil {
		return none, err
	}
	defer unlockSources()
	return m.make(ctx)
}

// waitAndReload waits until no other call works on the object with that name, above
// all no deletion, and reads the object again.
func (m maker[T]) waitAndReload(ctx context.Context, ids *locks, name string) (none T, err error) {
	found, err := m.find(ctx, name)
	if err != nil {
		return none, err
	}
	id, _ := found.Key()
	unlock, err := lock(ctx, ids, id)
	if err != nil {
		return none, err
	}
	defer unlock()
	return m.get(ctx, id)
}

// deleted turns the ErrNotFound of a deletion into nil.
func deleted(err error) error {
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	return err
}
