// Package inuse keeps node.status.volumesInUse, this node's flag in the handshake with the
// attach/detach controller: while a volume's name is there, the controller does not detach it.
//
// Names are raised before a volume is touched and dropped after the last trace of it is gone. All
// changes that come while one write is under way go out together with the next, at once and not
// by a timer. Which volumes are in use is decided by package volume.
package inuse

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
)

// namesInAMillisecond is a quarter of a second for 1,000 volumes: after a write of so many names the publisher collects changes for that time, before it writes
// again. With each write the API server reads and writes the whole Node, and all who watch it decode it.
const namesInAMillisecond = 4

// Write replaces volumesInUse by the names, which are sorted, and returns when the API server has
// answered.
type Write func(ctx context.Context, names []string) error

// Config says how a Publisher writes.
type Config struct {
	// Write must not be nil.
	Write Write
	// Timeout is the deadline of one write; 10 s if it is zero.
	Timeout time.Duration
	// RetryStart and RetryMax are the pauses after failed writes; 100 ms and 5 s if they are zero.
	RetryStart, RetryMax time.Duration
}

// Publisher owns volumesInUse of one node.
type Publisher struct {
	cfg   Config
	dirty chan struct{}

	mu   sync.Mutex
	want sets.Set[string]
	// held are names that Drop leaves.
	held sets.Set[string]
	// known is what the API server has; nil if that is not known.
	known   sets.Set[string]
	writing bool
	waiting []waiter
}

type waiter struct {
	name string
	done chan struct{}
}

// New makes a Publisher that writes nothing until Run.
func New(cfg Config) (*Publisher, error) {
	if cfg.Write == nil {
		return nil, errors.New("configure volumesInUse: no function to write them")
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 10 * time.Second
	}
	if cfg.RetryStart == 0 {
		cfg.RetryStart = 100 * time.Millisecond
	}
	if cfg.RetryMax == 0 {
		cfg.RetryMax = 5 * time.Second
	}
	return &Publisher{cfg: cfg, dirty: make(chan struct{}, 1), want: sets.Set[string]{}}, nil
}

// Seed adds names without waiting. It is for what an earlier process may have had in use.
func (p *Publisher) Seed(names ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.want.Insert(names...)
	p.poke()
}

// Hold is Seed for names that stay, whatever Drop says, until Unhold.
func (p *Publisher) Hold(names ...string) {
	p.mu.Lock()
	p.held = sets.New(names...)
	p.mu.Unlock()
	p.Seed(names...)
}

// Unhold lets the held names be dropped. Those that were dropped already have to be dropped again.
func (p *Publisher) Unhold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = nil
}

// Raise adds a name and returns when the API server has confirmed that it is there.
func (p *Publisher) Raise(ctx context.Context, name string) error {
	done, confirmed := p.add(name)
	if confirmed {
		return nil
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		p.giveUp(done)
		return fmt.Errorf("wait for volumesInUse to be written: %w", ctx.Err())
	}
}

// giveUp removes a waiter whose context has ended.
func (p *Publisher) giveUp(done <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = slices.DeleteFunc(p.waiting, func(w waiter) bool { return w.done == done })
}

func (p *Publisher) add(name string) (<-chan struct{}, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.want.Insert(name)
	if !p.writing && p.known.Has(name) {
		return nil, true
	}
	w := waiter{name: name, done: make(chan struct{})}
	p.waiting = append(p.waiting, w)
	p.poke()
	return w.done, false
}

// Drop takes a name out. It does not wait: a name that stays for longer does no harm.
func (p *Publisher) Drop(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held.Has(name) {
		return
	}
	p.want.Delete(name)
	p.poke()
}

// Observe passes the names of a Node that is newer than the last write. A write by another client is undone.
func (p *Publisher) Observe(names []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.writing || p.known == nil || p.known.Equal(sets.New(names...)) {
		return
	}
	p.known = nil
	p.poke()
}

// Names lists what is to be in volumesInUse, sorted.
func (p *Publisher) Names() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return sets.List(p.want)
}

// Run writes until ctx is done.
func (p *Publisher) Run(ctx context.Context) error {
	retry := time.Duration(0)
	for {
		if retry == 0 && !p.awaitChange(ctx) || !sleep(ctx, retry) {
			return nil
		}
		n, err := p.flush(ctx)
		if err != nil {
			retry = min(max(2*retry, p.cfg.RetryStart), p.cfg.RetryMax)
			klog.FromContext(ctx).Error(err, "volumesInUse is not written, retrying", logging.KeyDelay, retry)
			continue
		}
		if retry = 0; !sleep(ctx, time.Duration(n/namesInAMillisecond)*time.Millisecond) {
			return nil
		}
	}
}

// awaitChange waits for something to write; false means that ctx is done.
func (p *Publisher) awaitChange(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-p.dirty:
		return true
	}
}

// sleep waits for a time; false means that ctx is done.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// flush writes the names, unless the API server has them, and returns how many it wrote.
func (p *Publisher) flush(ctx context.Context) (int, error) {
	names, needed := p.take()
	if !needed {
		p.wrote(names, nil)
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	err := p.cfg.Write(ctx, sets.List(names))
	p.wrote(names, err)
	return len(names), err
}

// take returns what to write, and whether the API server does not have it yet.
func (p *Publisher) take() (sets.Set[string], bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writing = true
	names := p.want.Clone()
	return names, p.known == nil || !p.known.Equal(names)
}

// wrote notes the result of a write and wakes those whose name is confirmed by it. After an error
// nothing is known: the write may have been done.
func (p *Publisher) wrote(names sets.Set[string], err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writing = false
	if err != nil {
		p.known = nil
		return
	}
	p.known = names
	p.waiting = slices.DeleteFunc(p.waiting, func(w waiter) bool {
		if !names.Has(w.name) {
			return false
		}
		close(w.done)
		return true
	})
	if !p.want.Equal(names) {
		p.poke()
	}
}

// poke says that there may be something to write; the caller holds the lock.
func (p *Publisher) poke() {
	select {
	case p.dirty <- struct{}{}:
	default:
	}
}
