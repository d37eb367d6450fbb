package kube

import (
	"iter"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/utils/ptr"
)

// overlayTTL bounds how long an own write is kept that no watch and no list confirms.
const overlayTTL = time.Minute

// overlay holds own writes that the watch has not delivered yet. Usually it is empty.
type overlay[T Object] struct {
	transform func(T) T

	mu    sync.Mutex
	items map[string]overlayItem[T]
	// gone are the objects whose deletion the watch has delivered lately, with the time until which they are kept: the
	// answer to an own write may be remembered after the deletion.
	gone  map[types.UID]time.Time
	sweep time.Time
	// version is that of the last list.
	version string
}

type overlayItem[T Object] struct {
	obj     T
	deleted bool // the write has removed the object
	expires time.Time
}

// put remembers obj unless a newer one or its deletion is known.
func (o *overlay[T]) put(key string, obj T) {
	deleted := deletedByWrite(obj)
	obj = o.transform(obj)
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	o.expireLocked(now)
	if _, known := o.gone[obj.GetUID()]; known {
		return
	}
	if item, ok := o.items[key]; ok && !(overlayItem[T]{obj: obj, deleted: deleted}).follows(item.obj) {
		return
	}
	if o.items == nil {
		o.items = map[string]overlayItem[T]{}
	}
	o.items[key] = overlayItem[T]{obj: obj, deleted: deleted, expires: now.Add(overlayTTL)}
}

// deletedByWrite reports whether obj is what the API server returns for the write that removed it: the object is being
// deleted, and has neither finalizers nor a grace period.
func deletedByWrite(obj Object) bool {
	return obj.GetDeletionTimestamp() != nil && len(obj.GetFinalizers()) == 0 && ptr.Deref(obj.GetDeletionGracePeriodSeconds(), 0) == 0
}

// expireLocked drops expired entries from time to time; in between, they do no harm.
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

// get returns the remembered object of that key if it is newer than the store's, which lookup returns.
// The store is read last: an object that the watch delivers meanwhile is dropped here only after it is in the store.
func (o *overlay[T]) get(key string, lookup func(key string) (T, bool)) (obj T, ok bool) {
	o.mu.Lock()
	item, remembered := o.items[key]
	o.mu.Unlock()
	stored, ok := lookup(key)
	switch {
	case !remembered || !item.supersedes(stored, ok):
		return stored, ok
	case item.deleted:
		return obj, false
	}
	return item.obj, true
}

// supersedes reports whether the item is a later state than that of the store.
func (item overlayItem[T]) supersedes(stored T, ok bool) bool {
	return time.Now().Before(item.expires) && (!ok || item.follows(stored))
}

// follows reports whether the item is a later state than obj. The API server's answer to the write that removed an object has the version that the
// object had before, and nothing follows a removal but an object with another UID.
func (item overlayItem[T]) follows(obj T) bool {
	if item.deleted && item.obj.GetUID() == obj.GetUID() {
		return true
	}
	return newer(item.obj, obj)
}

// list returns the objects that match: of the remembered ones, and of those whose keys stored returns, with the given ones,
// each once. lookup returns the store's object of a key. As with get, the store is read last.
func (o *overlay[T]) list(match func(T) bool, stored func(others []string) []string, lookup func(key string) (T, bool)) iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, key := range stored(o.keys(match)) {
			if obj, ok := o.get(key, lookup); ok && match(obj) && !yield(obj) {
				return
			}
		}
	}
}

// keys returns the keys of the items that match.
func (o *overlay[T]) keys(match func(T) bool) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var keys []string
	for key, item := range o.items {
		if !item.deleted && match(item.obj) {
			keys = append(keys, key)
		}
	}
	return keys
}

// listed drops the items whose objects the last list lacks, and returns them. resourceVersion is that of a new list, empty for none; lookup returns the
// store's object of a key.
func (o *overlay[T]) listed(resourceVersion string, lookup func(key string) (T, bool)) []T {
	o.mu.Lock()
	defer o.mu.Unlock()
	if resourceVersion != "" {
		o.version = resourceVersion
	}
	var missed []T
	for key := range o.items {
		if o.missedLocked(key, lookup) {
			missed = append(missed, o.items[key].obj)
			delete(o.items, key)
		}
	}
	return missed
}

// missed reports whether the last list lacks the object of an item: no watch that follows will bring its deletion.
func (o *overlay[T]) missed(key string, lookup func(key string) (T, bool)) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.missedLocked(key, lookup)
}

func (o *overlay[T]) missedLocked(key string, lookup func(key string) (T, bool)) bool {
	item, ok := o.items[key]
	if !ok {
		return false
	}
	if order, err := resourceversion.CompareResourceVersion(item.obj.GetResourceVersion(), o.version); err != nil || order > 0 {
		return false
	}
	stored, ok := lookup(key)
	return !ok || stored.GetUID() != item.obj.GetUID()
}

// observe drops the items that the watch has caught up with.
func (o *overlay[T]) observe(before, after T) {
	var none T
	obj, gone := after, any(after) == any(none)
	if gone {
		obj = before
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if gone {
		o.markDeletedLocked(obj.GetUID())
	}
	if len(o.items) == 0 {
		return
	}
	key := keyOf(obj)
	item, ok := o.items[key]
	if !ok {
		return
	}
	if gone && item.obj.GetUID() == obj.GetUID() || !item.follows(obj) {
		delete(o.items, key)
	}
}

func (o *overlay[T]) markDeletedLocked(uid types.UID) {
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
