package nodemode

import (
	"sync"
	"time"
)

const (
	// firstSpread and lastSpread are the longest pauses before an instance checks whether a node that has taken claims
	// exists, in multiples of Config.MaxDelay: the pauses of the instances are spread evenly up to there, so that a thousand
	// instances make one or two requests a second.
	firstSpread, lastSpread = 10, 30
	// holderMemory is how long a node is remembered after it was to be checked.
	holderMemory = time.Hour
)

// holder is a node that has taken claims with immediate binding.
type holder struct {
	// checks counts the times that the node was found to exist.
	checks int
	// next is the time of the next check.
	next time.Time
	// gone says that the node did not exist at the last one.
	gone bool
}

// holders remembers nodes that have taken claims: a check of the node answers for all of its claims. The zero value is empty.
type holders struct {
	mu sync.Mutex
	by map[string]holder
	// free is when the instance may check the next node: whatever the number of nodes, it makes one request in MaxDelay.
	free time.Time
}

// checkPause returns the pause of an instance before it checks a node that was found to exist some times.
func (p pauses) checkPause(name string, checks int) time.Duration {
	longest := time.Duration(min(firstSpread*(checks+1), lastSpread)) * p.max
	return p.max + time.Duration(p.part(name, checks)*float64(longest-p.max))
}

// get returns what is known of a node, of which the first check is ahead when nothing is.
func (h *holders) get(p pauses, name string, now time.Time) holder {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.known(p, name, now)
}

// known is get with the lock held.
func (h *holders) known(p pauses, name string, now time.Time) holder {
	known, ok := h.by[name]
	if ok && (!known.gone || now.Before(known.next)) {
		return known
	}
	for other, state := range h.by {
		if now.Sub(state.next) > holderMemory {
			delete(h.by, other)
		}
	}
	if h.by == nil {
		h.by = map[string]holder{}
	}
	known = holder{next: now.Add(p.checkPause(name, 0))}
	h.by[name] = known
	return known
}

// begin returns what is known of a node, and whether the caller is to check it now, and to report by end.
func (h *holders) begin(p pauses, name string, now time.Time) (known holder, check bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	known = h.known(p, name, now)
	if now.Before(known.next) {
		return known, false
	}
	if check = !now.Before(h.free); check {
		h.free = now.Add(p.max)
	}
	known.next = h.free
	h.by[name] = known
	return known, check
}

// end notes the result of a check. That a node is gone is valid for long enough to reach all of its claims.
func (h *holders) end(p pauses, name string, gone bool, now time.Time) holder {
	h.mu.Lock()
	defer h.mu.Unlock()
	known := h.by[name]
	known.gone, known.checks = gone, known.checks+1
	known.next = now.Add(p.checkPause(name, known.checks))
	if gone {
		known.next = now.Add(2 * p.max)
	}
	h.by[name] = known
	return known
}
