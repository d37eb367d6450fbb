package sidecar

import (
	"context"
	"sync"
)

// presence is whether the driver accepts connections. It does in the zero value.
type presence struct {
	mu   sync.Mutex
	away bool
	// changed is closed at the next change; nil: no one waits for it.
	changed chan struct{}
}

// set notes whether the driver accepts connections.
func (p *presence) set(here bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away == here && p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
	p.away = !here
}

// get returns whether the driver is away, and what is closed when that changes.
func (p *presence) get() (away bool, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.away, p.changed
}

// wait returns when the driver accepts connections, or ctx ends. gone is closed when it no longer does.
func (p *presence) wait(ctx context.Context) (gone <-chan struct{}) {
	for {
		away, changed := p.get()
		if !away || ctx.Err() != nil {
			return changed
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}
