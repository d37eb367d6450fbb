// Package records remembers something about API objects beside their caches.
package records

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Of has a record for each object, by UID: without one there is the zero value, and with the zero value there is none.
// The zero value of Of is empty.
type Of[R comparable] struct {
	mu sync.Mutex
	by map[types.UID]R
}

// Get returns the record of an object.
func (r *Of[R]) Get(uid types.UID) R {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.by[uid]
}

// Change changes the record of an object and returns it as it was and as it is.
func (r *Of[R]) Change(uid types.UID, edit func(*R)) (before, after R) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before = r.by[uid]
	after = before
	edit(&after)
	var none R
	switch {
	case after == none:
		delete(r.by, uid)
	case r.by == nil:
		r.by = map[types.UID]R{uid: after}
	default:
		r.by[uid] = after
	}
	return before, after
}

// Drop forgets an object.
func (r *Of[R]) Drop(uid types.UID) {
	r.Change(uid, func(record *R) { *record = *new(R) })
}

// Matching returns the records that satisfy a condition.
func (r *Of[R]) Matching(holds func(R) bool) []R {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []R
	for _, record := range r.by {
		if holds(record) {
			found = append(found, record)
		}
	}
	return found
}
