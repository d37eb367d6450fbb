package reconcile_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/csikit/reconcile"
)

// A controller of a replica that never leads is made and never run. TestMain looks for goroutines.
func TestNewStartsNothing(t *testing.T) {
	c, err := reconcile.New(reconcile.Config[string]{
		Name: "idle", Reconcile: func(context.Context, string) (reconcile.Result, error) { return reconcile.Result{}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	c.Add("a")
	c.AddAfter("b", time.Hour)
	c.Wake("a")
	synctest.Test(t, func(t *testing.T) { // fails if a goroutine is left in the bubble
		if _, err := reconcile.New(reconcile.Config[string]{
			Name: "idle", Reconcile: func(context.Context, string) (reconcile.Result, error) { return reconcile.Result{}, nil },
		}); err != nil {
			t.Fatal(err)
		}
	})
}

func TestKeysBeforeRun(t *testing.T) {
	t.Parallel()
	type early struct {
		key   string
		pause time.Duration
	}
	cases := map[string]struct {
		reason  string
		early   []early
		wait    time.Duration // until Run
		waiting int           // in State before Run
		want    []string      // since Run
	}{
		"Nothing":  {reason: "Nothing added, nothing done."},
		"Order":    {reason: "Keys are worked on in the order in which they came.", early: []early{{key: "b"}, {key: "a"}, {key: "c"}}, waiting: 3, want: []string{"0s b", "0s a", "0s c"}},
		"Twice":    {reason: "A key that waits already is not added twice.", early: []early{{key: "a"}, {key: "b"}, {key: "a"}}, waiting: 2, want: []string{"0s a", "0s b"}},
		"Pause":    {reason: "A pause goes on from its beginning.", early: []early{{"a", 10 * time.Second}}, wait: 4 * time.Second, want: []string{"6s a"}},
		"Over":     {reason: "A pause may be over when Run begins.", early: []early{{"a", time.Second}}, wait: time.Minute, want: []string{"0s a"}},
		"Sooner":   {reason: "Of two pauses the shorter counts.", early: []early{{"a", 9 * time.Second}, {"a", 2 * time.Second}, {"a", 5 * time.Second}}, want: []string{"2s a"}},
		"Both":     {reason: "An Add does not cancel another look that was asked for later.", early: []early{{key: "a"}, {"a", time.Minute}}, waiting: 1, want: []string{"0s a", "1m0s a"}},
		"Negative": {reason: "A negative pause is none.", early: []early{{"a", -time.Second}}, waiting: 1, want: []string{"0s a"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var began time.Time
				var got []string
				c, err := reconcile.New(reconcile.Config[string]{
					Name: "test", Reconcile: func(_ context.Context, key string) (reconcile.Result, error) {
						got = append(got, fmt.Sprintf("%v %s", time.Since(began), key))
						return reconcile.Result{}, nil
					},
				})
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range tc.early {
					c.AddAfter(e.key, e.pause)
				}
				if waiting := c.State().Waiting; waiting != tc.waiting {
					t.Errorf("%s: State says %d waiting, want %d", tc.reason, waiting, tc.waiting)
				}
				time.Sleep(tc.wait)
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				began = time.Now()
				if err := c.Run(ctx); err != nil {
					t.Errorf("Run: %v", err)
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
				}
				if waiting := c.State().Waiting; waiting != 0 {
					t.Errorf("after Run %d are waiting", waiting)
				}
			})
		})
	}
}

// Informers add keys while Run begins; none may fall between the two queues.
func TestNoKeyIsLostWhileRunBegins(t *testing.T) {
	t.Parallel()
	const adders, each = 8, 200
	var mu sync.Mutex
	seen := map[int]bool{}
	all := make(chan struct{})
	c, err := reconcile.New(reconcile.Config[int]{
		Name: "test", Workers: 4, Reconcile: func(_ context.Context, key int) (reconcile.Result, error) {
			mu.Lock()
			defer mu.Unlock()
			if seen[key] = true; len(seen) == adders*each {
				close(all)
			}
			return reconcile.Result{}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var group sync.WaitGroup
	for i := range adders {
		group.Go(func() {
			for j := range each {
				c.Add(i*each + j)
			}
		})
	}
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	group.Wait()
	select {
	case <-all:
	case <-ctx.Done():
		mu.Lock()
		missing := slices.DeleteFunc(slices.Collect(func(yield func(int) bool) {
			for key := range adders * each {
				if !yield(key) {
					return
				}
			}
		}), func(key int) bool { return seen[key] })
		mu.Unlock()
		t.Errorf("lost: %v", missing)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}

// A context that has ended before Run ends it at once, with nothing begun, and there is no second Run.
func TestRunAfterTheEnd(t *testing.T) {
	t.Parallel()
	called := false
	c, err := reconcile.New(reconcile.Config[string]{
		Name: "test", Reconcile: func(context.Context, string) (reconcile.Result, error) {
			called = true
			return reconcile.Result{}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	c.Add("a")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Run(ctx); err != nil || called {
		t.Errorf("Run: %v, reconciled: %t", err, called)
	}
	c.Add("b") // after the end: forgotten, and no harm
	if err := c.Run(t.Context()); err == nil {
		t.Error("a second Run is an error")
	}
}
