// Package concurrency bounds how many calls of a driver run at a time by what the driver stands.
//
// A bound that is too high makes a driver refuse calls, which then wait for their retries; one that is too low wastes its
// capacity. No flag is right for long, so the bound follows the answers: it grows by one for as many answers as it allows
// calls, and shrinks by a quarter when the driver is overloaded (additive increase, multiplicative decrease, as TCP has it in
// RFC 5681, section 3.1). A driver is overloaded when it says so by UNAVAILABLE, and also when a call succeeds so late that it had nearly
// missed its deadline, although calls of its kind were much faster lately: a driver that does one thing at a time behind a
// lock answers like this, and refuses nothing. RESOURCE_EXHAUSTED is another matter: a full pool (CSI, "CreateVolume Errors"), which
// fewer calls would not make less full.
package concurrency

import (
	"container/list"
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// shrink is what an overloaded driver leaves of the bound.
	shrink = 0.75
	// slower is how many times as long as the fastest of its kind a call takes for a driver that is overloaded.
	slower = 4
	// lately is how long at least the fastest call of a kind counts, and half of how long at most.
	lately = 10 * time.Minute
)

// Limit is a bound of concurrent calls between two numbers. Its methods may be called by many goroutines.
type Limit struct {
	least, most int
	slow        time.Duration

	mu      sync.Mutex
	bound   float64
	running int
	waiting list.List // of chan struct{}, first come, first served
	// shrunk counts how often the bound has shrunk: of calls that ran beside each other, the first answer counts.
	shrunk int
	// fastest has the calls that succeeded in the shortest time, by their kind.
	fastest map[string]shortest
}

// NewLimit returns a limit that begins with the most calls, and never falls below the least. Both are at least 1. slow is how
// long a call takes from which on it is worth asking whether the driver is overloaded, half of its deadline for instance.
func NewLimit(least, most int, slow time.Duration) *Limit {
	most = max(most, 1)
	return &Limit{least: min(max(least, 1), most), most: most, slow: slow, bound: float64(most), fastest: map[string]shortest{}}
}

// Do makes a call when it is its turn, in the order in which Do was called. Calls of one kind take about the same time as long as
// the driver is not overloaded. The error is that of the call, or, if ctx ends before the turn comes, one that wraps that of ctx;
// then nothing was called.
func (l *Limit) Do(ctx context.Context, kind string, call func() error) error {
	if err := l.enter(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	shrunk := l.shrunk
	l.mu.Unlock()
	// A call that panics gives its place back, too.
	err := status.Error(codes.Internal, "the call did not return")
	began := time.Now()
	defer func() { l.leave(answer{kind: kind, err: err, took: time.Since(began)}, shrunk) }()
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

// answer is how a call ended.
type answer struct {
	kind string
	err  error
	took time.Duration
}

// leave gives the place of a call to the next one, and learns from its answer.
func (l *Limit) leave(a answer, shrunk int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.overloadedLocked(a):
		l.bound = min(l.bound+1/l.bound, float64(l.most))
	case shrunk == l.shrunk:
		l.bound = max(l.bound*shrink, float64(l.least))
		l.shrunk++
	}
	l.running--
	l.admitLocked()
}

// overloadedLocked reports whether an answer says that the driver has too many calls. A call that misses its deadline does not: drivers
// that always need longer than that are not slower beside many calls than beside few.
func (l *Limit) overloadedLocked(a answer) bool {
	if a.err != nil {
		return status.Code(a.err) == codes.Unavailable
	}
	fastest := l.fastest[a.kind].with(a.took, time.Now())
	l.fastest[a.kind] = fastest
	return a.took > l.slow && a.took > slower*fastest.of()
}

// shortest is the shortest time that a call has taken since some moment, and in the time before.
type shortest struct {
	since       time.Time
	now, before time.Duration
}

// with returns s with the time of one more call.
func (s shortest) with(took time.Duration, now time.Time) shortest {
	switch age := now.Sub(s.since); {
	case age > 2*lately:
		return shortest{since: now, now: took, before: took}
	case age > lately:
		return shortest{since: now, now: took, before: s.now}
	}
	s.now = min(s.now, took)
	return s
}

// of returns the shortest time of both.
func (s shortest) of() time.Duration { return min(s.now, s.before) }

// admitLocked lets those begin that have a place.
func (l *Limit) admitLocked() {
	for l.running < int(l.bound) && l.waiting.Len() > 0 {
		turn, _ := l.waiting.Remove(l.waiting.Front()).(chan struct{})
		l.running++
		close(turn)
	}
}
