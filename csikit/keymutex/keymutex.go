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
	"sync"
)

// Locks is a set of locks, one for each key. The zero value is ready for use;
// a Locks must not be copied after first use.
type Locks[K comparable] struct {
	mu   sync.Mutex
	keys map[K]*lock
}

// lock is held by the goroutine that has put the token into held. users counts
// the holder and the goroutines that wait; at zero the lock is forgotten.
type lock struct {
	held  chan struct{}
	users int
}

// Lock waits until the key is free or ctx ends. The returned function unlocks;
// calls of it after the first do nothing.
func (l *Locks[K]) Lock(ctx context.Context, key K) (unlock func(), err error) {
	k := l.join(key)
	select {
	case k.held <- struct{}{}:
		return l.unlocker(key, k), nil
	default:
	}
	select {
	case k.held <- struct{}{}:
		return l.unlocker(key, k), nil
	case <-ctx.Done():
		l.leave(key, k)
		return nil, fmt.Errorf("wait for the lock of %v: %w", key, context.Cause(ctx))
	}
}

// TryLock locks the key if it is free, and reports whether it was.
func (l *Locks[K]) TryLock(key K) (unlock func(), ok bool) {
	k := l.join(key)
	select {
	case k.held <- struct{}{}:
		return l.unlocker(key, k), true
	default:
		l.leave(key, k)
		return nil, false
	}
}

// Len returns how many keys are locked or waited for.
func (l *Locks[K]) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.keys)
}

func (l *Locks[K]) unlocker(key K, k *lock) func() {
	return sync.OnceFunc(func() {
		<-k.held
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
		k = &lock{held: make(chan struct{}, 1)}
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
