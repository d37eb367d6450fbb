package nodeinfo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// limits is a Refresher with the drivers and periods that a test sets.
type limits struct {
	t     *testing.T
	r     *Refresher
	began time.Time

	mu      sync.Mutex
	drivers []string
	changed chan struct{}
	periods map[string]time.Duration
	err     error
	hang    chan struct{}
	calls   []string // with the seconds since the start
}

func refreshing(t *testing.T, tell func(t *testing.T, l *limits)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &limits{t: t, began: time.Now(), drivers: []string{"d"}, changed: make(chan struct{}), periods: map[string]time.Duration{"d": time.Minute}}
		var err error
		l.r, err = NewRefresher(RefresherConfig{Drivers: l.list, Changed: l.change, Period: l.period, Refresh: l.refresh})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- l.r.Run(ctx) }()
		synctest.Wait()
		tell(t, l)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func (l *limits) list() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.drivers)
}

func (l *limits) change() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

func (l *limits) period(name string) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.periods[name]
}

func (l *limits) refresh(ctx context.Context, name string) error {
	l.mu.Lock()
	l.calls = append(l.calls, fmt.Sprintf("%s %v", name, time.Since(l.began)))
	hang, err := l.hang, l.err
	l.mu.Unlock()
	if hang != nil && name == "d" {
		select {
		case <-hang:
		case <-ctx.Done():
		}
	}
	return err
}

// register sets the registered drivers.
func (l *limits) register(names ...string) {
	l.mu.Lock()
	l.drivers = names
	close(l.changed)
	l.changed = make(chan struct{})
	l.mu.Unlock()
	synctest.Wait()
}

// setPeriod changes the period in the CSIDriver object.
func (l *limits) setPeriod(name string, period time.Duration) {
	l.mu.Lock()
	l.periods[name] = period
	l.mu.Unlock()
	l.r.PeriodsChanged()
	synctest.Wait()
}

// expect lets time pass, and compares the calls since the last time. Those of one moment come in any order.
func (l *limits) expect(reason string, wait time.Duration, want ...string) {
	l.t.Helper()
	time.Sleep(wait)
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.Sort(want)
	slices.Sort(l.calls)
	if diff := cmp.Diff(want, l.calls); diff != "" {
		l.t.Errorf("%s: calls, -want +got:\n%s", reason, diff)
	}
	l.calls = nil
}

// TestRefresher: drivers are asked again at their periods.
func TestRefresher(t *testing.T) {
	cases := map[string]struct {
		reason string
		run    func(l *limits)
	}{
		"Period": {reason: "each period", run: func(l *limits) {
			l.expect("before the first period", 59*time.Second)
			l.expect("two periods", 62*time.Second, "d 1m0s", "d 2m0s")
		}},
		"None": {reason: "no period in the CSIDriver object", run: func(l *limits) {
			l.setPeriod("d", 0)
			l.r.Ask("d")
			l.expect("never", time.Hour)
			l.setPeriod("d", 2*time.Hour)
			l.expect("what was asked for before does not count", time.Minute)
		}},
		"Shorter": {reason: "a change takes effect at once", run: func(l *limits) {
			l.expect("", 30*time.Second)
			l.setPeriod("d", 10*time.Second)
			l.expect("it is over already", 0, "d 30s")
			l.expect("the new period", 11*time.Second, "d 40s")
		}},
		"Longer": {reason: "a change takes effect at once", run: func(l *limits) {
			l.expect("", 30*time.Second)
			l.setPeriod("d", 5*time.Minute)
			l.expect("the new period, from the registration", 5*time.Minute, "d 5m0s")
		}},
		"Failure": {reason: "an error is repeated at the next period", run: func(l *limits) {
			l.mu.Lock()
			l.err = errors.New("the driver is away")
			l.mu.Unlock()
			l.expect("no other pace", 150*time.Second, "d 1m0s", "d 2m0s")
		}},
		"Deregistered": {reason: "only registered drivers are called, and the period begins with the registration", run: func(l *limits) {
			l.register()
			l.expect("away", 90*time.Second)
			l.register("d")
			l.expect("not at once", 59*time.Second)
			l.expect("a period later", time.Second, "d 2m30s")
		}},
		"Asked": {reason: "a refused volume refreshes at once, but not more than once in ten seconds", run: func(l *limits) {
			l.r.Ask("d")
			l.r.Ask("d")
			l.expect("at once, although it has just registered", 0, "d 0s")
			l.r.Ask("d")
			l.expect("not yet", 9*time.Second)
			l.expect("ten seconds later, and then the period", 71*time.Second, "d 10s", "d 1m10s")
			l.r.Ask("d")
			l.r.Ask("unknown")
			l.expect("at once", 0, "d 1m20s")
		}},
		"Hangs": {reason: "one driver holds up no other, and is called once at a time", run: func(l *limits) {
			hang := make(chan struct{})
			l.mu.Lock()
			l.hang = hang
			l.mu.Unlock()
			l.setPeriod("e", time.Minute)
			l.register("d", "e")
			l.expect("e goes on", 150*time.Second, "d 1m0s", "e 1m0s", "e 2m0s")
			close(hang)
			l.expect("d is late", 0, "d 2m30s")
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			refreshing(t, func(t *testing.T, l *limits) { tc.run(l) })
		})
	}
	if _, err := NewRefresher(RefresherConfig{}); err == nil {
		t.Error("a Refresher without functions is accepted")
	}
}

// TestUpdateWritesTheLimit: the limit is written if it has changed, and nothing else is.
func TestUpdateWritesTheLimit(t *testing.T) {
	limit := func(n int64) Driver { d := driverD(); d.MaxVolumes = n; return d }
	cases := map[string]struct {
		reason  string
		update  Driver
		changed bool
		want    int32
		writes  []string
	}{
		"Same":    {reason: "nothing has changed", update: limit(3), want: 3},
		"Fewer":   {reason: "a smaller limit", update: limit(2), changed: true, want: 2, writes: []string{"update csinodes"}},
		"None":    {reason: "no limit any more", update: limit(0), changed: true, want: -1, writes: []string{"update csinodes"}},
		"Unknown": {reason: "a driver that is not installed", update: Driver{Name: "other.example", NodeID: "id"}, want: 3},
		"NodeID": {reason: "the rest of an entry cannot change", update: Driver{Name: "d.example", NodeID: "id-9", MaxVolumes: 5},
			changed: true, want: 5, writes: []string{"update csinodes"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			story(t, nil, func(t *testing.T, w *world) {
				w.install(limit(3))
				w.c.ResetWrites()
				for _, changed := range []bool{tc.changed, false} {
					got, err := w.w.Update(t.Context(), tc.update)
					if err != nil || got != changed {
						t.Errorf("%s: Update: %v, %v, want %v", tc.reason, got, err, changed)
					}
				}
				w.expectWrites(tc.writes...)
				w.expectIDs("d.example=id-1")
				if got := count(w.csiNode().Spec.Drivers[0]); got != tc.want {
					t.Errorf("%s: limit %d, want %d", tc.reason, got, tc.want)
				}
				if err := w.w.EnsureCSINode(t.Context()); err != nil {
					t.Fatal(err)
				}
				w.expectWrites()
			})
		})
	}
	story(t, nil, func(t *testing.T, w *world) {
		if _, err := w.w.Update(t.Context(), Driver{Name: "d.example"}); err == nil {
			t.Error("an answer without a node ID is accepted")
		}
	})
}

// TestUpdateThatFails is tried again by the next one.
func TestUpdateThatFails(t *testing.T) {
	story(t, nil, func(t *testing.T, w *world) {
		w.install(driverD())
		w.c.Fail("update", "csinodes", errors.New("connection refused"), 0)
		d := driverD()
		d.MaxVolumes = 99
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if changed, err := w.w.Update(ctx, d); changed || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Update: %v, %v, want the deadline", changed, err)
		}
		w.c.Heal()
		if changed, err := w.w.Update(t.Context(), d); !changed || err != nil {
			t.Errorf("Update: %v, %v", changed, err)
		}
		if got := count(w.csiNode().Spec.Drivers[0]); got != 99 {
			t.Errorf("limit %d, want 99", got)
		}
	})
}
