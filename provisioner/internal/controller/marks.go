package controller

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// marks is a set of objects, by UID, with a time for each. The zero value is an empty set.
type marks struct {
	mu sync.Mutex
	at map[types.UID]time.Time
}

// put marks the object and returns when it was first marked.
func (m *marks) put(uid types.UID, now time.Time) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	if first, ok := m.at[uid]; ok {
		return first
	}
	if m.at == nil {
		m.at = map[types.UID]time.Time{}
	}
	m.at[uid] = now
	return now
}

// has tells whether the object is marked.
func (m *marks) has(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.at[uid]
	return ok
}

// drop takes the mark away.
func (m *marks) drop(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.at, uid)
}

// empty tells whether nothing is marked.
func (m *marks) empty() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.at) == 0
}

// turns remembers the places of this instance in the competition for claims. The zero value is empty.
type turns struct {
	mu sync.Mutex
	by map[types.UID]turn
}

// put notes the place in the competition for a claim.
func (t *turns) put(uid types.UID, next turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.by == nil {
		t.by = map[types.UID]turn{}
	}
	t.by[uid] = next
}

// get returns it; one that has not begun when nothing is noted.
func (t *turns) get(uid types.UID) turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.by[uid]
}

// drop forgets the competition for a claim.
func (t *turns) drop(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.by, uid)
}

// len returns the number of claims that are competed for.
func (t *turns) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.by)
}

// holds remembers which source a claim is served from, from before its volume is asked for until the claim has one or is gone.
// The zero value is empty.
type holds struct {
	mu sync.Mutex
	by map[types.UID]volume.SourceRef
}

// put notes the source of a claim.
func (h *holds) put(claim types.UID, source volume.SourceRef) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.by == nil {
		h.by = map[types.UID]volume.SourceRef{}
	}
	h.by[claim] = source
}

// has tells whether the claim is served from a source.
func (h *holds) has(claim types.UID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.by[claim]
	return ok
}

// any tells whether any claim is served from a source.
func (h *holds) any(source volume.SourceRef) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, held := range h.by {
		if held == source {
			return true
		}
	}
	return false
}

// drop forgets a claim, and returns its source if it had one.
func (h *holds) drop(claim types.UID) (source volume.SourceRef, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	source, ok = h.by[claim]
	delete(h.by, claim)
	return source, ok
}

// rests remembers requests that cannot succeed, so that the driver is not asked over and over. The zero
// value is empty.
type rests struct {
	mu sync.Mutex
	by map[types.UID]rest
}

// rest is one request that cannot succeed as it stands.
type rest struct {
	// what identifies all that went into the request.
	what string
	// until is when it is tried again all the same.
	until time.Time
}

// put lets a request rest.
func (r *rests) put(uid types.UID, what string, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.by == nil {
		r.by = map[types.UID]rest{}
	}
	r.by[uid] = rest{what: what, until: until}
}

// left returns how long a request still rests: not at all once anything that went into it has changed. The function is
// called only for a claim whose request rests, for most do not.
func (r *rests) left(uid types.UID, what func() string, now time.Time) time.Duration {
	r.mu.Lock()
	found, ok := r.by[uid]
	r.mu.Unlock()
	if !ok || found.what != what() {
		return 0
	}
	return max(0, found.until.Sub(now))
}

// drop forgets the request of a claim.
func (r *rests) drop(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.by, uid)
}

// len returns the number of requests that rest.
func (r *rests) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.by)
}
