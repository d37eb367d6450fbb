// Package keymutex locks by key, so that operations on one volume exclude each
// other and those on different volumes do not. It keeps memory only for keys
// that are locked or waited for.
//
// It is for short-lived exclusion inside one process. It neither survives a
// restart nor excludes other processes.
package keymutex

import (
	"context"
	"fmt"
	"math"
	"sync"

	"golang.org/x/sync/semaphore"
)

// Locks is a set of locks, one for each key. The zero value is ready for use;
// a Locks must not be copied after first use.
type Locks[K comparable] struct {
	mu   sync.Mutex
	keys map[K]*lock
}

// all is the weight of a goroutine that shares the lock with no other.
const all = math.MaxInt64

// lock has the goroutines that hold the lock of a key, and those that wait, which are served in their order. users counts
// both; at zero the lock is forgotten.
type lock struct {
	held  *semaphore.Weighted
	users int
}

// Lock waits until the key is free or ctx ends. The returned function unlocks;
// calls of it after the first do nothing.
func (l *Locks[K]) Lock(ctx context.Context, key K) (unlock func(), err error) {
	return l.acquire(ctx, key, all)
}

// RLock is Lock for a holder that does not exclude others that have called RLock. It waits behind a Lock that waits.
func (l *Locks[K]) RLock(ctx context.Context, key K) (unlock func(), err error) {
	return l.acquire(ctx, key, 1)
}

func (l *Locks[K]) acquire(ctx context.Context, key K, weight int64) (unlock func(), err error) {
	k := l.join(key)
	// What is free is given even if ctx has ended.
	if !k.held.TryAcquire(weight) && k.held.Acquire(ctx, weight) != nil {
		l.leave(key, k)
		return nil, fmt.Errorf("wait for the lock of %v: %w", key, context.Cause(ctx))
	}
	return l.unlocker(key, k, weight), nil
}

// TryLock locks the key if it is free, and reports whether it was.
func (l *Locks[K]) TryLock(key K) (unlock func(), ok bool) {
	k := l.join(key)
	if !k.held.TryAcquire(all) {
		l.leave(key, k)
		return nil, false
	}
	return l.unlocker(key, k, all), true
}

// Len returns how many keys are locked or waited for.
func (l *Locks[K]) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.keys)
}

func (l *Locks[K]) unlocker(key K, k *lock, weight int64) func() {
	return sync.OnceFunc(func() {
		k.held.Release(weight)
		l.leave(key, k)
	})
}

func (l *Locks[K]) join(key K) *lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.keys[key]
	if k == nil {
		if l.keys == nil {
			l.keys = make(map[K]*lock)
		}
		k = &lock{held: semaphore.NewWeighted(all)}
		l.keys[key] = k
	}
	k.users++
	return k
}

func (l *Locks[K]) leave(key K, k *lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.users--; k.users == 0 {
		delete(l.keys, key)
	}
}
