package controller

import (
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// marks is a set of objects, by UID, with the time at which each came into it. The zero value is an empty set.
type marks struct {
	table[time.Time]
}

// put marks the object and returns when it was first marked.
func (m *marks) put(uid types.UID, now time.Time) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	if first, ok := m.by[uid]; ok {
		return first
	}
	if m.by == nil {
		m.by = map[types.UID]time.Time{}
	}
	m.by[uid] = now
	return now
}

// has reports whether the object is marked.
func (m *marks) has(uid types.UID) bool {
	_, ok := m.get(uid)
	return ok
}

// table maps objects, by UID, to what is noted about them. The zero value is empty.
type table[V any] struct {
	mu sync.Mutex
	by map[types.UID]V
}

// put notes a value, in place of the one before.
func (t *table[V]) put(uid types.UID, value V) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.by == nil {
		t.by = map[types.UID]V{}
	}
	t.by[uid] = value
}

// get returns the value of an object; without one ok is false and the value is zero.
func (t *table[V]) get(uid types.UID) (value V, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	value, ok = t.by[uid]
	return value, ok
}

// drop forgets an object and returns its value, if it had one.
func (t *table[V]) drop(uid types.UID) (value V, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	value, ok = t.by[uid]
	delete(t.by, uid)
	return value, ok
}

// len returns the number of objects.
func (t *table[V]) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.by)
}

// each calls a function with a copy of every value.
func (t *table[V]) each(call func(V)) {
	t.mu.Lock()
	values := slices.Collect(maps.Values(t.by))
	t.mu.Unlock()
	for _, value := range values {
		call(value)
	}
}

// any reports whether a value satisfies a condition.
func (t *table[V]) any(holds func(V) bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, value := range t.by {
		if holds(value) {
			return true
		}
	}
	return false
}
