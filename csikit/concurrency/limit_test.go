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

// backend is a driver for which each call is work for some time.
type backend struct {
	running, refused, served, missed atomic.Int64
	// stands is the number of calls beside each other from which on more are refused; 0: none is.
	stands int64
	takes  time.Duration
}

func (b *backend) call(ctx context.Context) error {
	defer b.running.Add(-1)
	if n := b.running.Add(1); b.stands > 0 && n > b.stands {
		b.refused.Add(1)
		return status.Error(codes.ResourceExhausted, "too many requests")
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
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
				if l.Do(ctx, func() error { return b.call(context.WithoutCancel(ctx)) }) != nil {
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
		"Slow":     {reason: "One that always needs longer than the deadline needs no fewer calls beside each other.", backend: &backend{takes: time.Minute}, from: 100, to: 100},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := concurrency.NewLimit(5, 100)
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
		l := concurrency.NewLimit(1, 1)
		release := make(chan struct{})
		go func() { _ = l.Do(t.Context(), func() error { <-release; return nil }) }()
		synctest.Wait()
		var order []string
		var work sync.WaitGroup
		for n := range 3 {
			work.Go(func() {
				_ = l.Do(t.Context(), func() error { order = append(order, fmt.Sprint(n)); return nil })
			})
			synctest.Wait()
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		enough := errors.New("enough")
		work.Go(func() {
			err := l.Do(ctx, func() error { t.Error("called although its context has ended"); return nil })
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
			_ = l.Do(t.Context(), func() error { panic("a defect") })
		}()
		if err := l.Do(t.Context(), func() error { return nil }); err != nil {
			t.Errorf("after a panic: %v", err)
		}
	})
}

// Of calls that ran beside each other, all of which are refused, the bound shrinks once.
func TestOneOverloadCountsOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := concurrency.NewLimit(1, 100)
		var work sync.WaitGroup
		for range 100 {
			work.Go(func() {
				_ = l.Do(t.Context(), func() error {
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
