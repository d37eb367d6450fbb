// Package idempotent lets a CO call again. Its decorators answer a call whose
// work is done, refuse one that contradicts, and let one call at a time
// through per name and id. The rules themselves are pure functions of package
// volume.
//
// It is written once for every backend. Do not put work of a backend here:
// what it wraps sees only calls that change something.
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

// locks are the locks of ids, of whatever kind. Who needs the lock of a name
// as well takes that one first, and who needs several ids takes them at once:
// in one order, so nobody waits for each other.
type locks = keymutex.Locks[volume.ID]

// lock takes turns. Who waits longer than the deadline of the call gets an
// ErrBusy, which tells the CO to call again.
func lock[K ~string](ctx context.Context, locks *keymutex.Locks[K], key K) (func(), error) {
	unlock, err := locks.Lock(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("%q: %w: %w", key, volume.ErrBusy, err)
	}
	return unlock, nil
}

// lockAll is lock for several ids; it may be given one of them twice.
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

// maker makes things of one kind that have a name.
type maker[T interface{ Key() (volume.ID, string) }] struct {
	find func(ctx context.Context, name string) (T, error)
	get  func(ctx context.Context, id volume.ID) (T, error)
	// same reports whether an existing one is what is asked for.
	same func(T) error
	// from are the ids of what it is made of. They stay as they are until it
	// is made, so that what is deleted is never a source.
	from []volume.ID
	make func(ctx context.Context) (T, error)
}

// once returns what has the name if it is what is asked for, and makes it if
// there is none.
func (m maker[T]) once(ctx context.Context, names *keymutex.Locks[string], ids *locks, name string) (none T, err error) {
	unlock, err := lock(ctx, names, name)
	if err != nil {
		return none, err
	}
	defer unlock()
	found, err := m.settled(ctx, ids, name)
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

// settled waits for what is going on with what has the name, a deletion above
// all, and looks again.
func (m maker[T]) settled(ctx context.Context, ids *locks, name string) (none T, err error) {
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

// deleted makes nil of the ErrNotFound of a deletion.
func deleted(err error) error {
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	return err
}
