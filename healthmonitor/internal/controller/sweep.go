package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/outcome"
)

// errWrongVolume is an answer about another volume, or about none.
var errWrongVolume = errors.New("answer is not about the volume")

// lastSweep is the last sweep. The zero value is none.
type lastSweep struct {
	mu       sync.Mutex
	state    SweepState
	failures int // lists in a row that failed
}

// note notes a sweep that has ended, and returns how many in a row have failed.
func (l *lastSweep) note(state SweepState) (failures int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = state
	if l.failures++; state.Error == "" {
		l.failures = 0
	}
	return l.failures
}

// sweep reads the health of all volumes once, and waits until the next is due.
func (c *Controller) sweep(ctx context.Context) {
	features, start := c.cfg.Features(), time.Now()
	volumes := c.bound()
	state := SweepState{Began: start, Volumes: len(volumes)}
	var interval time.Duration
	switch {
	case features.lists():
		c.limiter.SetLimit(rate.Limit(c.cfg.MaxCalls))
		interval = c.cfg.ListInterval
		if err := c.list(ctx, features); err != nil {
			state.Error = outcome.Message(err)
		}
	case features.gets() && len(volumes) > 0:
		c.limiter.SetLimit(pace(len(volumes), c.cfg.MonitorInterval, c.cfg.MaxCalls))
		c.probeAll(ctx, features, volumes)
	default:
		interval = c.cfg.MonitorInterval
	}
	if ctx.Err() != nil {
		return
	}
	state.Took = time.Since(start).Round(time.Millisecond).String()
	if failures := c.last.note(state); failures > 0 {
		klog.FromContext(ctx).Info("Listing the health of volumes failed, trying again", logging.KeyReason, state.Error, logging.KeyCount, failures)
		interval = min(interval, c.cfg.Retry.Max, c.cfg.Retry.Start<<min(failures-1, 20)) //nolint:mnd // enough for any interval
	} else {
		c.cfg.Metrics.sweep.Set(time.Since(start).Seconds())
	}
	if interval > 0 {
		wait(ctx, c.wake, interval)
	}
}

// pace is the number of calls per second with which each of the volumes is read once in an interval, at most the budget. There is never a burst: that the calls
// are spread over the interval is what keeps the driver from a storm, at the start as later.
func pace(volumes int, interval time.Duration, most float64) rate.Limit {
	return rate.Limit(min(most, float64(volumes)/interval.Seconds()))
}

// bound returns the names of the volumes that are bound, in no order, so that a process that is restarted again and again begins with others each time.
func (c *Controller) bound() []string {
	var names []string
	for pv := range c.pvs.All() {
		if isBound(pv) {
			names = append(names, pv.Name)
		}
	}
	return names
}

// probeAll reads volumes one by one, as fast as the limiter allows.
func (c *Controller) probeAll(ctx context.Context, features Features, names []string) {
	var group errgroup.Group
	group.SetLimit(c.cfg.Workers)
	for _, name := range names {
		if c.limiter.Wait(ctx) != nil {
			break // ctx has ended
		}
		group.Go(func() error {
			c.probe(ctx, features, name)
			return nil
		})
	}
	_ = group.Wait() // it has no errors
}

// probe reads the health of one volume, and reports it.
func (c *Controller) probe(ctx context.Context, features Features, name string) {
	pv, ok := c.pvs.Get("", name)
	if !ok || !isBound(pv) {
		return // it was deleted or released meanwhile
	}
	h, err := c.get(ctx, features, pv.Spec.CSI.VolumeHandle)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		c.failed(ctx, pv, err)
	default:
		c.answered(ctx, pv, h)
	}
}

// get asks the driver for the health of one volume. An answer that lacks it is an error.
func (c *Controller) get(ctx context.Context, features Features, handle string) (h health, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	start := time.Now()
	if features.categories() {
		var answer *csi.ControllerGetVolumeHealthResponse
		answer, err = c.cfg.CSI.ControllerGetVolumeHealth(ctx, &csi.ControllerGetVolumeHealthRequest{VolumeId: handle})
		if id := answer.GetVolumeHealth().GetVolumeId(); err == nil && id != handle {
			err = fmt.Errorf("ControllerGetVolumeHealth of volume %q: %w, but about %q", handle, errWrongVolume, id)
		}
		c.cfg.Metrics.called("ControllerGetVolumeHealth", start, err)
		return healthOf(answer.GetVolumeHealth()), err
	}
	answer, err := c.cfg.CSI.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: handle})
	if err == nil {
		h, err = conditionOf(answer.GetStatus())
	}
	c.cfg.Metrics.called("ControllerGetVolume", start, err)
	return h, err
}
