package controller

import (
	"maps"
	"sync"
	"time"
)

// nodeLookups remembers which Nodes had no node ID of the driver, so that many VolumeAttachments that wait for one node, or a role
// without the right to read Nodes, do not cause a request each.
type nodeLookups struct {
	// first is the pause after the first lookup without a result. It doubles with each further one, up to longest.
	first, longest time.Duration

	mu        sync.Mutex
	misses    map[string]miss
	forbidden time.Time // until when no lookup is allowed to try
}

// miss is a node without a node ID.
type miss struct {
	pause time.Duration
	until time.Time
}

// wait returns how long to wait before the next lookup of the node; 0: it may be looked up.
func (l *nodeLookups) wait(node string, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(0, l.misses[node].until.Sub(now), l.forbidden.Sub(now))
}

// missed records a lookup that found no node ID. Of several that ran at the same time, the first counts.
func (l *nodeLookups) missed(node string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.misses[node]
	if now.Before(before.until) {
		return
	}
	if l.misses == nil {
		l.misses = map[string]miss{}
	}
	maps.DeleteFunc(l.misses, func(_ string, m miss) bool { return now.Sub(m.until) > l.longest }) // no VolumeAttachment waits for these
	pause := min(max(l.first, 2*before.pause), l.longest)
	l.misses[node] = miss{pause: pause, until: now.Add(pause)}
}

// refused records a lookup for which the right is missing: that concerns all nodes.
func (l *nodeLookups) refused(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forbidden = now.Add(l.longest)
}

// forget makes the next lookup of the node its first one.
func (l *nodeLookups) forget(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.misses, node)
}
