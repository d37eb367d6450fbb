package controller

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// attempts are the last attempts of both operations on a claim.
type attempts struct {
	uid            types.UID
	expand, modify attempt
	// unsure: the last write of the claim has failed, and may yet have been applied, so that the cache may be older than that.
	unsure bool
}

// memory holds the last attempts by claim. A claim that was created later under the same name does not inherit them.
// The zero value is ready to use.
type memory struct {
	mu     sync.Mutex
	claims map[string]attempts
}

// of returns the last attempts on a claim.
func (m *memory) of(key string, uid types.UID) attempts {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ofLocked(key, uid)
}

func (m *memory) ofLocked(key string, uid types.UID) attempts {
	if a, ok := m.claims[key]; ok && a.uid == uid {
		return a
	}
	return attempts{uid: uid}
}

// change changes what is remembered of a claim by f, which must not use the memory. A claim without attempts is not kept.
func (m *memory) change(key string, uid types.UID, f func(*attempts)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.ofLocked(key, uid)
	f(&a)
	if a == (attempts{uid: uid}) {
		delete(m.claims, key)
		return
	}
	if m.claims == nil {
		m.claims = map[string]attempts{}
	}
	m.claims[key] = a
}

// forget drops a claim that is gone.
func (m *memory) forget(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.claims, key)
}

// forgetUID drops a claim that is gone, and not one that has its name now.
func (m *memory) forgetUID(key string, uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.claims[key].uid == uid {
		delete(m.claims, key)
	}
}

// retryNow ends the pauses of a claim.
func (m *memory) retryNow(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a, ok := m.claims[key]; ok {
		a.expand.due, a.modify.due = time.Time{}, time.Time{}
		m.claims[key] = a
	}
}

// retryModify ends the pause of the modification of a claim.
func (m *memory) retryModify(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a, ok := m.claims[key]; ok {
		a.modify.due = time.Time{}
		m.claims[key] = a
	}
}

// retryUnused ends the pause of an expansion that waits until the volume is not used, and reports whether there is one.
func (m *memory) retryUnused(key string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, ok := m.claims[key]
	if !ok || !a.expand.inUse {
		return false
	}
	a.expand.due, a.expand.failures = time.Time{}, 0
	m.claims[key] = a
	return true
}
