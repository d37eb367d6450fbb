package concurrency_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/csikit/concurrency"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// deadline is that of each call.
const deadline = 15 * time.Second

// backend is a driver for which each call is work for some time.
type backend struct {
	running, refused, served, missed atomic.Int64
	// stands is the number of calls beside each other from which on more are refused; 0: none is.
	stands int64
	takes  time.Duration
	// serial backends serve one call after the other, which has the lock meanwhile.
	serial bool
	lock   chan struct{}
}

func (b *backend) call(ctx context.Context) error {
	defer b.running.Add(-1)
	if n := b.running.Add(1); b.stands > 0 && n > b.stands {
		b.refused.Add(1)
		return status.Error(codes.Unavailable, "too many requests")
	}
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if b.serial {
			b.lock <- struct{}{}
			defer func() { <-b.lock }()
			if ctx.Err() != nil {
				return // the caller is gone
			}
		}
		time.Sleep(b.takes)
	}()
	select {
	case <-done:
		b.served.Add(1)
		return nil
	case <-ctx.Done():
		b.missed.Add(1)
		return status.FromContextError(ctx.Err()).Err()
	}
}

// load has so many workers call the backend for some time.
func load(t *testing.T, l *concurrency.Limit, b *backend, workers int, length time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var work sync.WaitGroup
	for range workers {
		work.Go(func() {
			for ctx.Err() == nil {
				if l.Do(ctx, "create", func() error { return b.call(context.WithoutCancel(ctx)) }) != nil {
					time.Sleep(time.Second)
				}
			}
		})
	}
	work.Wait()
}

func TestBoundFollowsTheBackend(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason  string
		backend *backend
		// from and to are where the bound is to be after ten minutes.
		from, to int
		// served is the least number of calls that have succeeded.
		served int64
	}{
		"Fast":     {reason: "What causes no errors has all calls that there are.", backend: &backend{takes: 100 * time.Millisecond}, from: 100, to: 100, served: 500_000},
		"Refusing": {reason: "A backend that stands 20 calls gets about as many.", backend: &backend{takes: 100 * time.Millisecond, stands: 20}, from: 10, to: 25, served: 60_000},
		"Serial": {
			reason:  "A backend that serves one call per second gets no more than it can answer before they miss their deadlines, and not the least, either.",
			backend: &backend{takes: time.Second, serial: true}, from: 5, to: 12, served: 500,
		},
		"Slow": {reason: "One that always needs longer than the deadline needs no fewer calls beside each other.", backend: &backend{takes: time.Minute}, from: 100, to: 100},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := concurrency.NewLimit(5, 100, deadline/2)
				tc.backend.lock = make(chan struct{}, 1)
				load(t, l, tc.backend, 100, 10*time.Minute)
				time.Sleep(time.Hour) // the backend ends what it has begun
				t.Logf("bound %d: %d served, %d refused, %d missed their deadline", l.Bound(), tc.backend.served.Load(), tc.backend.refused.Load(), tc.backend.missed.Load())
				if n := l.Bound(); n < tc.from || n > tc.to {
					t.Errorf("%s\nbound %d, want %d to %d", tc.reason, n, tc.from, tc.to)
				}
				if n := tc.backend.served.Load(); n < tc.served {
					t.Errorf("%s\n%d calls were served, want at least %d", tc.reason, n, tc.served)
				}
			})
		})
	}
}

// Calls begin in the order in which they came, one that has given up is left out, and a panic gives its place back.
func TestTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := concurrency.NewLimit(1, 1, deadline/2)
		release := make(chan struct{})
		go func() { _ = l.Do(t.Context(), "create", func() error { <-release; return nil }) }()
		synctest.Wait()
		var order []string
		var work sync.WaitGroup
		for n := range 3 {
			work.Go(func() {
				_ = l.Do(t.Context(), "create", func() error { order = append(order, fmt.Sprint(n)); return nil })
			})
			synctest.Wait()
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		enough := errors.New("enough")
		work.Go(func() {
			err := l.Do(ctx, "create", func() error { t.Error("called although its context has ended"); return nil })
			if !errors.Is(err, enough) {
				t.Errorf("error %v, want the cause", err)
			}
		})
		synctest.Wait()
		cancel(enough)
		synctest.Wait()
		close(release)
		work.Wait()
		if got := fmt.Sprint(order); got != "[0 1 2]" {
			t.Errorf("order %s", got)
		}
		func() {
			defer func() { _ = recover() }()
			_ = l.Do(t.Context(), "create", func() error { panic("a defect") })
		}()
		if err := l.Do(t.Context(), "create", func() error { return nil }); err != nil {
			t.Errorf("after a panic: %v", err)
		}
	})
}

// Of calls that ran beside each other, all of which are refused, the bound shrinks once.
func TestOneOverloadCountsOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := concurrency.NewLimit(1, 100, deadline/2)
		var work sync.WaitGroup
		for range 100 {
			work.Go(func() {
				_ = l.Do(t.Context(), "create", func() error {
					time.Sleep(time.Second)
					return status.Error(codes.Unavailable, "overloaded")
				})
			})
		}
		work.Wait()
		if n := l.Bound(); n != 75 {
			t.Errorf("bound %d, want 75", n)
		}
	})
}

// A call that takes long is compared with the fastest of its own kind, and with that of the last minutes.
func TestSlowAnswers(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		kind   string
		took   time.Duration
		err    error
		pause  time.Duration
		want   int
	}{
		"Overload":    {reason: "It was much faster before, and has nearly missed its deadline.", kind: "create", took: 8 * time.Second, want: 75},
		"NotSoLong":   {reason: "Nothing is in danger.", kind: "create", took: 7 * time.Second, want: 100},
		"OtherKind":   {reason: "A copy takes longer than an empty volume.", kind: "copy", took: 14 * time.Second, want: 100},
		"Failure":     {reason: "The driver refused it for another reason.", kind: "create", took: 14 * time.Second, err: status.Error(codes.InvalidArgument, "no"), want: 100},
		"ALittleAgo":  {reason: "The driver was fast 15 minutes ago.", kind: "create", took: 8 * time.Second, pause: 15 * time.Minute, want: 75},
		"OneHourAgo":  {reason: "The driver became slow as such.", kind: "create", took: 8 * time.Second, pause: time.Hour, want: 100},
		"AlwaysSlow":  {reason: "The fastest of its kind needs nearly as long.", kind: "snapshot", took: 14 * time.Second, want: 100},
		"AtTheBottom": {reason: "Far over its deadline, a call counts once.", kind: "create", took: time.Minute, want: 75},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := concurrency.NewLimit(1, 100, deadline/2)
				call := func(kind string, took time.Duration, err error) {
					_ = l.Do(t.Context(), kind, func() error { time.Sleep(took); return err })
				}
				call("create", time.Second, nil)
				call("snapshot", 10*time.Second, nil)
				time.Sleep(tc.pause)
				call(tc.kind, tc.took, tc.err)
				if n := l.Bound(); n != tc.want {
					t.Errorf("%s\nbound %d, want %d", tc.reason, n, tc.want)
				}
			})
		})
	}
}
