package reconcile

import (
	"sync"
	"time"
)

// wakeSpacing is the time between two keys of WakeAll.
const wakeSpacing = 20 * time.Millisecond

// WakeAll adds keys, one after the other, because what they wait for may have come back, such as a driver. It does nothing if it did so
// within the longest pause of Config.Retry: what crashes under its load, and comes back, gets only what the backoff of each key allows.
func (c *Controller[K]) WakeAll(keys func() []K) {
	if !c.woken.begin(time.Now(), c.cfg.Retry.Max) {
		return
	}
	for i, key := range keys() {
		c.backoff.wake(key, false)
		c.queue.add(key, time.Duration(i)*wakeSpacing)
	}
}

// woken remembers when WakeAll last added keys. The zero value is ready to use.
type woken struct {
	mu   sync.Mutex
	last time.Time
}

// begin reports whether enough time has passed to do it again.
func (w *woken) begin(now time.Time, interval time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.last.IsZero() && now.Sub(w.last) < interval {
		return false
	}
	w.last = now
	return true
}
