package backend

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/contents"
)

// defaultPatience is how long a call, or a start, waits until the trash is empty.
const defaultPatience = 2 * time.Second

// bin empties the trash. A tenant decides how long that takes, so that no call and no start waits for its end: what has been moved to the trash is deleted.
type bin struct {
	removals *driverkit.Background
	patience time.Duration

	mu sync.Mutex
	// freed is called when the contents at a path of the trash are gone: the pool has their space again.
	freed map[string]func()
}

func (b *bin) start(patience time.Duration) {
	b.removals = &driverkit.Background{}
	b.patience, b.freed = cmp.Or(patience, defaultPatience), map[string]func(){}
}

// owe has freed called when the contents of an id, which are moved to the trash now, are gone.
func (b *bin) owe(store *contents.Store, id string, freed func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if before := b.freed[store.Trashed(id)]; before != nil {
		before() // these contents make room for the new ones
	}
	b.freed[store.Trashed(id)] = freed
}

// settle calls what was owed for the contents of an id, which are gone.
func (b *bin) settle(store *contents.Store, id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if freed := b.freed[store.Trashed(id)]; freed != nil {
		freed()
	}
	delete(b.freed, store.Trashed(id))
}

// purge removes the contents of an id from the trash, or waits for that for a while; then it goes on. Its error is that of a removal that has failed.
func (b *bin) purge(ctx context.Context, store *contents.Store, id string) error {
	if !store.Discarded(id) {
		b.settle(store, id)
		return nil
	}
	path := store.Trashed(id)
	return b.wait(ctx, path, func(ctx context.Context) error {
		err := store.Purge(ctx, id)
		if err == nil {
			b.settle(store, id)
		}
		return err
	})
}

// empty removes all that is in the trash of a root, or waits for that for a while; then it goes on.
func (b *bin) empty(ctx context.Context, store *contents.Store) {
	_ = b.wait(ctx, store.Trashed("."), func(ctx context.Context) error { // each error was logged
		return store.Empty(ctx, func(path string, err error) {
			logger := klog.FromContext(ctx).WithValues(logging.KeyPath, path)
			if err != nil {
				logger.Error(err, "Could not remove what is left of a deleted volume; the next start tries again")
				return
			}
			logger.Info("Removed what an interrupted operation left")
		})
	})
}

// wait does something in the background, and waits for its end for a while.
func (b *bin) wait(ctx context.Context, path string, work func(ctx context.Context) error) error {
	if err := b.removals.Start(ctx, path, work); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, b.patience)
	defer cancel()
	err := b.removals.Wait(waiting, path)
	if errors.Is(err, driverkit.ErrRunning) && ctx.Err() == nil {
		klog.FromContext(ctx).Info("Deleted contents are removed in the background", logging.KeyPath, path)
		return nil
	}
	return err
}
