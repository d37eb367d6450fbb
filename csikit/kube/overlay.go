package kube

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// overlayTTL bounds how long an own write is believed that no watch confirms: the
// object was deleted again before the watch (re)started and will never show up.
const overlayTTL = time.Minute

// overlay holds own writes that the watch has not brought yet. Usually it is empty.
type overlay[T Object] struct {
	transform func(T) T

	mu    sync.Mutex
	items map[string]overlayItem[T]
	// gone are the objects whose deletion the watch has brought lately, with the time until which that is kept: the
	// answer to an own write may be remembered after it.
	gone  map[types.UID]time.Time
	sweep time.Time
}

type overlayItem[T Object] struct {
	obj     T
	expires time.Time
}

// put remembers obj unless a newer one or its deletion is known. An object without finalizers that is being deleted is what
// the API server returns for the write that deleted it.
func (o *overlay[T]) put(key string, obj T) {
	ended := obj.GetDeletionTimestamp() != nil && len(obj.GetFinalizers()) == 0 && ptr.Deref(obj.GetDeletionGracePeriodSeconds(), 0) == 0
	obj = o.transform(obj)
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	o.expireLocked(now)
	if _, deleted := o.gone[obj.GetUID()]; deleted {
		return
	}
	if item, ok := o.items[key]; ok && !newer(obj, item.obj) {
		return
	}
	if ended {
		delete(o.items, key)
		return
	}
	if o.items == nil {
		o.items = map[string]overlayItem[T]{}
	}
	o.items[key] = overlayItem[T]{obj: obj, expires: now.Add(overlayTTL)}
}

// expireLocked drops what is too old, now and then: what is left in between does no harm.
func (o *overlay[T]) expireLocked(now time.Time) {
	if now.Before(o.sweep) {
		return
	}
	o.sweep = now.Add(overlayTTL / 4)
	for key, item := range o.items {
		if !now.Before(item.expires) {
			delete(o.items, key)
		}
	}
	for uid, expires := range o.gone {
		if !now.Before(expires) {
			delete(o.gone, uid)
		}
	}
}

// get returns the remembered object of that key if it is newer than what lookup finds in the store.
// The store is asked last: what the watch brings meanwhile is dropped here only after it is there.
func (o *overlay[T]) get(key string, lookup func(key string) (T, bool)) (T, bool) {
	o.mu.Lock()
	item, remembered := o.items[key]
	o.mu.Unlock()
	stored, ok := lookup(key)
	if remembered && time.Now().Before(item.expires) && (!ok || newer(item.obj, stored)) {
		return item.obj, true
	}
	return stored, ok
}

// merge replaces and completes the list that read returns from the store. match tells which remembered
// objects belong into it, lookup returns what the store has under a key. As with get the store is asked last.
func (o *overlay[T]) merge(read func() []T, match func(T) bool, lookup func(key string) (T, bool)) []T {
	current := current(o.remembered(), lookup)
	stored := read()
	if len(current) == 0 {
		return stored
	}
	merged := make([]T, 0, len(stored)+len(current))
	for _, obj := range stored {
		key := cache.MetaObjectToName(obj).String()
		if own, ok := current[key]; ok && newer(own, obj) {
			continue
		}
		delete(current, key) // the store has caught up
		merged = append(merged, obj)
	}
	for _, obj := range current {
		if match(obj) {
			merged = append(merged, obj)
		}
	}
	return merged
}

// remembered returns a copy of the items, nil if there are none.
func (o *overlay[T]) remembered() map[string]overlayItem[T] {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.items) == 0 {
		return nil
	}
	return maps.Clone(o.items)
}

// current returns the remembered objects that are newer than the store's.
func current[T Object](items map[string]overlayItem[T], lookup func(key string) (T, bool)) map[string]T {
	if len(items) == 0 {
		return nil
	}
	current := make(map[string]T, len(items))
	now := time.Now()
	for key, item := range items {
		stored, ok := lookup(key)
		if now.Before(item.expires) && (!ok || newer(item.obj, stored)) {
			current[key] = item.obj
		}
	}
	return current
}

// observe drops what the watch has caught up with.
func (o *overlay[T]) observe(before, after T, gone bool) {
	obj := after
	if gone {
		obj = before
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if gone {
		o.buryLocked(obj.GetUID())
	}
	if len(o.items) == 0 {
		return
	}
	key := cache.MetaObjectToName(obj).String()
	item, ok := o.items[key]
	if !ok {
		return
	}
	if gone && item.obj.GetUID() == obj.GetUID() || !newer(item.obj, obj) {
		delete(o.items, key)
	}
}

func (o *overlay[T]) buryLocked(uid types.UID) {
	now := time.Now()
	o.expireLocked(now)
	if o.gone == nil {
		o.gone = map[types.UID]time.Time{}
	}
	o.gone[uid] = now.Add(overlayTTL)
}

// newer reports whether a is a later state than b. resourceVersions that cannot be
// compared (not from an API server) count as newer when they differ.
func newer[T Object](a, b T) bool {
	av, bv := a.GetResourceVersion(), b.GetResourceVersion()
	order, err := resourceversion.CompareResourceVersion(av, bv)
	if err != nil {
		return av != bv
	}
	return order > 0
}
