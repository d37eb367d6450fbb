package nodeinfo

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
)

// refreshPause is the minimum time between two refreshes of a driver that Refresher.Ask causes: the shortest period that the API allows.
const refreshPause = 10 * time.Second

// RefresherConfig says what to refresh of which drivers: their limits, or something else. All fields are required.
type RefresherConfig struct {
	// Drivers lists the registered drivers, and Changed returns a channel that is closed when the list changes.
	Drivers func() []string
	Changed func() <-chan struct{}
	// Period is CSIDriver.spec.nodeAllocatableUpdatePeriodSeconds of a driver; 0: its limit is never refreshed.
	Period func(driver string) time.Duration
	// Refresh calls NodeGetInfo of a driver and writes the limit if it has changed. It needs a deadline of its own.
	Refresh func(ctx context.Context, driver string) error
}

// Refresher refreshes the volume limits of drivers that ask for it with a period in their CSIDriver object. A refresh that fails is
// repeated after the period.
type Refresher struct {
	cfg  RefresherConfig
	wake chan struct{}

	mu    sync.Mutex
	turns map[string]*refreshTurn
}

// refreshTurn is the progress of one driver.
type refreshTurn struct {
	// last is when the last refresh began; at first, when the driver was registered.
	last time.Time
	// asked is true from Ask until the next refresh begins, and answered is when the last refresh began that Ask has caused.
	asked    bool
	answered time.Time
	running  bool
}

// NewRefresher returns a Refresher that does nothing until Run.
func NewRefresher(cfg RefresherConfig) (*Refresher, error) {
	if cfg.Drivers == nil || cfg.Changed == nil || cfg.Period == nil || cfg.Refresh == nil {
		return nil, errors.New("configure the refresh of volume limits: all functions are required")
	}
	return &Refresher{cfg: cfg, wake: make(chan struct{}, 1), turns: map[string]*refreshTurn{}}, nil
}

// Ask refreshes the limit of a driver at once, or 10 seconds after the last refresh that Ask has caused. It does not block, and does nothing
// for a driver without a period.
func (r *Refresher) Ask(driver string) {
	r.mu.Lock()
	if t := r.turns[driver]; t != nil {
		t.asked = true
	}
	r.mu.Unlock()
	r.PeriodsChanged()
}

// PeriodsChanged makes Run read the periods again. Call it when a CSIDriver object has changed.
func (r *Refresher) PeriodsChanged() {
	select {
	case r.wake <- struct{}{}:
	default: // Run has not come to the last call yet
	}
}

// Run works until ctx ends, which is no error, and returns when no refresh runs any more.
func (r *Refresher) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	for ctx.Err() == nil {
		changed := r.cfg.Changed()
		due, next := r.due(time.Now())
		for _, name := range due {
			running.Go(func() { r.refresh(ctx, name) })
		}
		r.sleep(ctx, changed, next)
	}
	return nil
}

// sleep waits for a change, or until a time; zero: none.
func (r *Refresher) sleep(ctx context.Context, changed <-chan struct{}, until time.Time) {
	var timeout <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-ctx.Done():
	case <-changed:
	case <-r.wake:
	case <-timeout:
	}
}

// due returns the drivers to refresh now, and when the next one has its turn; zero: never. It marks the former as running.
func (r *Refresher) due(now time.Time) (due []string, next time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.follow(now)
	for _, name := range sortedKeys(r.turns) {
		t := r.turns[name]
		at, ok := t.at(r.cfg.Period(name))
		switch {
		case !ok:
			t.asked = false
		case t.running: // wakes Run at its end
		case !at.After(now):
			due = append(due, name)
			t.begin(now)
		case next.IsZero() || at.Before(next):
			next = at
		}
	}
	return due, next
}

// follow adds drivers that were registered, and removes those that are not any more. The caller holds the lock.
func (r *Refresher) follow(now time.Time) {
	turns := map[string]*refreshTurn{}
	for _, name := range r.cfg.Drivers() {
		if turns[name] = r.turns[name]; turns[name] == nil {
			turns[name] = &refreshTurn{last: now}
		}
	}
	r.turns = turns
}

// at returns when the driver has its turn; false: never.
func (t *refreshTurn) at(period time.Duration) (time.Time, bool) {
	if period <= 0 {
		return time.Time{}, false
	}
	at := t.last.Add(period)
	if early := t.answered.Add(refreshPause); t.asked && early.Before(at) {
		at = early
	}
	return at, true
}

func (t *refreshTurn) begin(now time.Time) {
	if t.asked {
		t.answered = now
	}
	t.last, t.asked, t.running = now, false, true
}

// refresh refreshes the limit of one driver.
func (r *Refresher) refresh(ctx context.Context, name string) {
	if err := r.cfg.Refresh(ctx, name); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Refreshing the volume limit of a CSI driver", logging.KeyDriver, name)
	}
	r.mu.Lock()
	if t := r.turns[name]; t != nil {
		t.running = false
	}
	r.mu.Unlock()
	r.PeriodsChanged()
}
