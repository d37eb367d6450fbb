package shared

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/baton"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// phase is where the gate is in the course of a turn:
//
//	closed -> opening -> open -> draining -> closed
//	                         \-------------->
type phase int

const (
	// closed: another process may have its turn. No call is under way.
	closed phase = iota
	// opening: one call waits for the turn, the others for that call.
	opening
	// open: calls come and go.
	open
	// draining: another process waits, so new calls wait for the next turn.
	draining
)

// gate lets the calls of one process through while it has the baton.
type gate struct {
	baton *baton.Baton
	store Store
	turn  time.Duration

	mu    sync.Mutex
	phase phase
	// calls are under way; there is at least one while the gate is open.
	calls int
	// since is when the turn began.
	since time.Time
	// known is the stamp of what the store has in memory.
	known baton.Stamp
	// changed is closed, and replaced, when a phase ends that calls wait for.
	changed chan struct{}
	ended   bool
}

var errEnded = errors.New("the driver has ended")

// enter waits until a call may be made. Each one that entered must leave.
func (g *gate) enter(ctx context.Context, p purpose) error {
	for {
		next, changed, err := g.join(p)
		switch {
		case err != nil || next == entered:
			return err
		case next == opens:
			return g.open(ctx, p)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return waited(ctx, nil)
		}
	}
}

// waited is the error of a call whose turn did not come in time.
func waited(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return fmt.Errorf("wait for the turn of this process on a shared state directory: %w: %w", volume.ErrBusy, errors.Join(context.Cause(ctx), err))
}

// verdict is what a call has to do next.
type verdict int

const (
	// waits: look again after a change.
	waits verdict = iota
	// entered: go on.
	entered
	// opens: take the baton, for all that wait.
	opens
)

func (g *gate) join(p purpose) (verdict, <-chan struct{}, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.ended:
		return waits, nil, errEnded
	case g.phase == closed:
		g.phase = opening
		return opens, nil, nil
	case g.phase == open && g.over():
		g.phase = draining
	case g.phase == open:
		return entered, nil, g.count(p)
	}
	return waits, g.changed, nil
}

// over reports whether this process has had its turn and another one waits. It
// needs the mutex.
func (g *gate) over() bool {
	if time.Since(g.since) < g.turn {
		return false
	}
	wanted, err := g.baton.Wanted()
	return wanted || err != nil // who takes the baton next reports the error
}

// count lets one call through. It needs the mutex.
func (g *gate) count(p purpose) error {
	if p == changes {
		if err := g.change(); err != nil {
			return err
		}
	}
	g.calls++
	return nil
}

// change notes that there will be changes on disk, once in a turn. It needs
// the mutex.
func (g *gate) change() error {
	if g.known.Version != "" && !g.known.Complete {
		return nil
	}
	next := baton.Stamp{Version: rand.Text()}
	if err := g.baton.Note(next); err != nil {
		return err
	}
	g.known = next
	return nil
}

// complete notes that there will be no more changes. It needs the mutex.
func (g *gate) complete() error {
	if g.known.Complete || g.known.Version == "" {
		return nil
	}
	done := baton.Stamp{Version: g.known.Version, Complete: true}
	if err := g.baton.Note(done); err != nil {
		g.known = baton.Stamp{} // the next turn of any process recovers
		return err
	}
	g.known = done
	return nil
}

// open takes the baton, brings the store up to date, and lets the first call
// through. When it fails, the next call that waits tries.
func (g *gate) open(ctx context.Context, p purpose) error {
	stamp, err := g.baton.Take(ctx)
	taken := err == nil
	if taken {
		err = g.catchUp(ctx, stamp)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err == nil {
		err = g.count(p)
	}
	if err == nil {
		g.since = time.Now()
		return g.shift(open)
	}
	if taken {
		err = errors.Join(err, g.baton.Give())
	}
	return errors.Join(waited(ctx, err), g.shift(closed))
}

// catchUp brings the store up to date with what other processes did. While
// the gate is opening, nobody else uses what it needs the mutex for later.
func (g *gate) catchUp(ctx context.Context, stamp baton.Stamp) error {
	switch {
	case !stamp.Complete:
		klog.FromContext(ctx).Info("The process before did not end its turn; looking at what it left")
		g.known = baton.Stamp{}
		if err := g.change(); err != nil {
			return err
		}
		return g.store.Recover(ctx)
	case stamp != g.known:
		if err := g.store.Refresh(ctx); err != nil {
			return err
		}
		g.known = stamp
	}
	return nil
}

// leave ends a call, and with the last one the turn.
func (g *gate) leave(ctx context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.calls--; g.calls > 0 {
		return
	}
	if err := errors.Join(g.complete(), g.baton.Give(), g.shift(closed)); err != nil {
		klog.FromContext(ctx).Error(err, "The turn of this process did not end in order; the next one looks at what it left")
	}
}

// shift goes to a phase that calls wait for. It needs the mutex.
func (g *gate) shift(to phase) error {
	g.phase = to
	close(g.changed)
	g.changed = make(chan struct{})
	if to == closed && g.ended {
		return g.baton.Close()
	}
	return nil
}

// close lets no more calls through. Those under way keep their turn.
func (g *gate) close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return nil
	}
	g.ended = true
	if g.phase == closed {
		return g.shift(closed)
	}
	return nil
}
