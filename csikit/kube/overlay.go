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
	ended   bool // the write has removed the object
	expires time.Time
}

// put remembers obj unless a newer one or its deletion is known.
func (o *overlay[T]) put(key string, obj T) {
	ended := isEnded(obj)
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
	if o.items == nil {
		o.items = map[string]overlayItem[T]{}
	}
	o.items[key] = overlayItem[T]{obj: obj, ended: ended, expires: now.Add(overlayTTL)}
}

// isEnded reports whether obj is what the API server returns for the write that removed it: the object is being
// deleted, and nothing holds it up.
func isEnded(obj Object) bool {
	return obj.GetDeletionTimestamp() != nil && len(obj.GetFinalizers()) == 0 && ptr.Deref(obj.GetDeletionGracePeriodSeconds(), 0) == 0
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
func (o *overlay[T]) get(key string, lookup func(key string) (T, bool)) (obj T, ok bool) {
	o.mu.Lock()
	item, remembered := o.items[key]
	o.mu.Unlock()
	stored, ok := lookup(key)
	switch {
	case !remembered || !item.rules(stored, ok):
		return stored, ok
	case item.ended:
		return obj, false
	}
	return item.obj, true
}

// rules reports whether the item, and not what the store has, is the latest state that is known.
func (item overlayItem[T]) rules(stored T, ok bool) bool {
	return time.Now().Before(item.expires) && (!ok || newer(item.obj, stored))
}

// merge replaces and completes the list that read returns from the store. match tells which remembered
// objects belong into it, lookup returns what the store has under a key. As with get the store is asked last.
func (o *overlay[T]) merge(read func() []T, match func(T) bool, lookup func(key string) (T, bool)) []T {
	own := ruling(o.remembered(), lookup)
	stored := read()
	if len(own) == 0 {
		return stored
	}
	merged := make([]T, 0, len(stored)+len(own))
	for _, obj := range stored {
		key := cache.MetaObjectToName(obj).String()
		if item, ok := own[key]; ok && newer(item.obj, obj) {
			continue
		}
		delete(own, key) // the store has caught up
		merged = append(merged, obj)
	}
	for _, item := range own {
		if !item.ended && match(item.obj) {
			merged = append(merged, item.obj)
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

// ruling drops the items that are not newer than what the store has.
func ruling[T Object](items map[string]overlayItem[T], lookup func(key string) (T, bool)) map[string]overlayItem[T] {
	maps.DeleteFunc(items, func(key string, item overlayItem[T]) bool {
		return !item.rules(lookup(key))
	})
	return items
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
