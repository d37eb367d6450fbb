package leader

import (
	"fmt"
	"sync"
	"time"
)

// tolerance is how long after its expiry an unrenewed Lease is excused.
const tolerance = 20 * time.Second

// Health answers /healthz/leader-election, and knows who leads. The zero value is that of an instance that
// does not lead, which is healthy.
type Health struct {
	mu      sync.Mutex
	expires time.Time // zero: not leading
	holder  string
	since   time.Time
}

// Leader returns the holder of the Lease as it was last seen, and since when by the holder's clock; "" if there is none, or the Lease was not read yet.
func (h *Health) Leader() (identity string, since time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.holder, h.since
}

func (h *Health) see(r record) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.holder, h.since = r.holder, r.acquired.Time
}

// Check returns an error when this instance leads by a Lease that expired more than 20 seconds ago: it is stuck, and
// a restart is the cure.
func (h *Health) Check() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.expires.IsZero() {
		return nil
	}
	if late := time.Since(h.expires); late > tolerance {
		return fmt.Errorf("lease expired %v ago and was not renewed", late.Round(time.Second))
	}
	return nil
}

func (h *Health) set(expires time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.expires = expires
}

func (h *Health) clear() { h.set(time.Time{}) }
