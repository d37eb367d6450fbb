// Package concurrency bounds how many calls of a driver run at a time by what the driver stands.
//
// A bound that is too high makes a driver refuse calls, which then wait for their retries; one that is too low wastes its
// capacity. No flag is right for long, so the bound follows the answers: it grows by one for as many answers as it allows
// calls, and shrinks by a quarter when the driver is overloaded (additive increase, multiplicative decrease, as TCP has it in
// RFC 5681, section 3.1).
package concurrency

import (
	"container/list"
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// shrink is what an overloaded driver leaves of the bound.
const shrink = 0.75

// Limit is a bound of concurrent calls between two numbers. Its methods may be called by many goroutines.
type Limit struct {
	least, most int

	mu      sync.Mutex
	bound   float64
	running int
	waiting list.List // of chan struct{}, first come, first served
	// shrunk counts how often the bound has shrunk: of calls that ran beside each other, the first answer counts.
	shrunk int
}

// NewLimit returns a limit that begins with the most calls, and never falls below the least. Both are at least 1.
func NewLimit(least, most int) *Limit {
	most = max(most, 1)
	return &Limit{least: min(max(least, 1), most), most: most, bound: float64(most)}
}

// Do makes a call when it is its turn, in the order in which Do was called. Its error is that of the call, or, if ctx ends
// before the turn comes, one that wraps that of ctx; then nothing was called.
func (l *Limit) Do(ctx context.Context, call func() error) error {
	if err := l.enter(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	shrunk := l.shrunk
	l.mu.Unlock()
	// A call that panics gives its place back, too.
	err := status.Error(codes.Internal, "the call did not return")
	defer func() { l.leave(err, shrunk) }()
	err = call()
	return err
}

// Bound returns the number of calls that may run at a time now.
func (l *Limit) Bound() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int(l.bound)
}

// enter waits for a place.
func (l *Limit) enter(ctx context.Context) error {
	l.mu.Lock()
	turn := make(chan struct{})
	place := l.waiting.PushBack(turn)
	l.admitLocked()
	l.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-turn: // at the same moment
		return nil
	default:
	}
	l.waiting.Remove(place)
	return fmt.Errorf("wait for one of %d calls to end: %w", l.running, context.Cause(ctx))
}

// leave gives the place of a call to the next one, and learns from its answer.
func (l *Limit) leave(err error, shrunk int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !overloaded(err):
		l.bound = min(l.bound+1/l.bound, float64(l.most))
	case shrunk == l.shrunk:
		l.bound = max(l.bound*shrink, float64(l.least))
		l.shrunk++
	}
	l.running--
	l.admitLocked()
}

// overloaded reports whether an answer says that the driver has too many calls. A call that misses its deadline does not: drivers that always
// need longer than that are not slower beside many calls than beside few.
func overloaded(err error) bool {
	code := status.Code(err)
	return code == codes.Unavailable || code == codes.ResourceExhausted
}

// admitLocked lets those begin that have a place.
func (l *Limit) admitLocked() {
	for l.running < int(l.bound) && l.waiting.Len() > 0 {
		turn, _ := l.waiting.Remove(l.waiting.Front()).(chan struct{})
		l.running++
		close(turn)
	}
}
