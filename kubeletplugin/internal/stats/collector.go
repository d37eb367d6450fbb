// Package stats asks CSI drivers from time to time how much of the published volumes is used, and whether the volumes are well, by both generations of
// the specification: VolumeCondition in the statistics (up to CSI v1.12) and NodeGetVolumeHealth (since v1.13).
//
// The results are metrics with the names of a kubelet's, events on the pods, and Latest.
package stats

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/outcome"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

const (
	// atOnce is how many answers of one driver are waited for at the same time: volumes that hang starve those of no other driver.
	atOnce = 8
	// ticks is how often in an interval it is looked which volumes are due.
	ticks = 8
	// fresh is for how many intervals a measurement counts: that of a volume that does not answer any more disappears.
	fresh = 5
	// slowest is by how much volumes whose calls end at the deadline are asked less often: a power of two.
	slowest = 4
)

// Events receives the events.
type Events interface {
	// Condition sends an event on a pod about the condition of one of its volumes: a warning unless the reason is volume.ReasonNormal.
	Condition(pod volume.Pod, reason, message string)
}

// Config says what a Collector asks.
type Config struct {
	// Published lists the volumes; it is volume.Manager's.
	Published func() []volume.Published
	// Drivers finds drivers.
	Drivers volume.Drivers
	// Events receives events; nil for none.
	Events Events
	// Health is called, instead of Events, with the UID of a pod when one of its volumes has other conditions than before, or has them for the first time;
	// conditions are no metric then. It must not block; nil for none.
	Health func(types.UID)
	// Interval is how often each volume is asked for, and up to as long again at random; 1 minute if zero.
	Interval time.Duration
	// Timeout is the deadline of one call; 1 minute if zero.
	Timeout time.Duration
	// Clock tells the time; nil means that of the machine.
	Clock clock.Clock
	// Spread returns random numbers in [0, 1); nil means math/rand.
	Spread func() float64
}

// Collector asks drivers. It is a prometheus.Collector.
type Collector struct {
	cfg Config

	mu      sync.Mutex
	results map[volume.Key]*entry
	byPod   map[types.UID][]*entry
	calls   map[string]int // by driver
}

type entry struct {
	volume.Usage

	next, measured time.Time
	// asking is true while a call has not ended, and late counts the calls in a row that have ended at the deadline.
	asking bool
	late   int
}

// New makes a Collector that does nothing until Run.
func New(cfg Config) (*Collector, error) {
	if cfg.Published == nil || cfg.Drivers == nil {
		return nil, errors.New("configure statistics of volumes: a list of volumes and drivers are needed")
	}
	if cfg.Interval < 0 || cfg.Timeout < 0 {
		return nil, fmt.Errorf("configure statistics of volumes: interval %v or timeout %v is negative", cfg.Interval, cfg.Timeout)
	}
	if cfg.Interval == 0 {
		cfg.Interval = time.Minute
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Minute
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Spread == nil {
		cfg.Spread = rand.Float64
	}
	return &Collector{cfg: cfg, results: map[volume.Key]*entry{}, calls: map[string]int{}}, nil
}

// Run asks until ctx is done.
func (c *Collector) Run(ctx context.Context) error {
	var calls sync.WaitGroup
	defer calls.Wait()
	for {
		for _, p := range c.due() {
			calls.Go(func() {
				r, err := c.one(ctx, p)
				c.note(ctx, p, r, err)
			})
		}
		timer := c.cfg.Clock.NewTimer(c.cfg.Interval / ticks)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
	}
}

// due lists the volumes whose time has come, and forgets those that are gone. A new volume is asked for within an interval. A volume whose call has not ended,
// or whose driver has enough to do, has to wait.
func (c *Collector) due() []volume.Published {
	published, now := c.cfg.Published(), c.cfg.Clock.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	results, byPod := map[volume.Key]*entry{}, map[types.UID][]*entry{}
	var due []volume.Published
	for _, p := range published {
		e := c.results[p.Key]
		if e == nil {
			e = &entry{next: now.Add(time.Duration(c.cfg.Spread() * float64(c.cfg.Interval)))}
		}
		results[p.Key], byPod[p.Pod.UID] = e, append(byPod[p.Pod.UID], e)
		e.Published = p
		if now.Sub(e.measured) > fresh*c.cfg.Interval {
			e.Bytes, e.Inodes = nil, nil
		}
		if !now.Before(e.next) && !e.asking && c.calls[p.Volume.Driver] < atOnce {
			e.asking = true
			c.calls[p.Volume.Driver]++
			due = append(due, p)
		}
	}
	c.results, c.byPod = results, byPod
	return due
}

// one asks the driver about one volume; nil if the driver reports nothing.
func (c *Collector) one(ctx context.Context, p volume.Published) (*volume.Usage, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	d, err := c.cfg.Drivers.Driver(p.Volume.Driver)
	if err != nil {
		return nil, err
	}
	can, err := d.NodeCapabilities(ctx)
	if err != nil {
		return nil, err
	}
	if !can[csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] || p.Volume.Ephemeral {
		p.Staging = ""
	}
	r := &volume.Usage{}
	if can[csi.NodeServiceCapability_RPC_GET_VOLUME_STATS] {
		err = readStats(ctx, r, d.Node(), p, can[conditionCapability])
	}
	if can[csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH] {
		err = errors.Join(err, readHealth(ctx, r, d.Node(), p))
	}
	return r, err
}

// note keeps a result.
func (c *Collector) note(ctx context.Context, p volume.Published, r *volume.Usage, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls[p.Volume.Driver]--; c.calls[p.Volume.Driver] == 0 {
		delete(c.calls, p.Volume.Driver)
	}
	e := c.results[p.Key]
	if e == nil || ctx.Err() != nil {
		return // The pod is gone, or this is the end.
	}
	e.asking = false
	if e.late++; outcome.Code(err) != codes.DeadlineExceeded {
		e.late = 0
	}
	interval := c.cfg.Interval << min(e.late, slowest)
	e.next = c.cfg.Clock.Now().Add(interval + time.Duration(c.cfg.Spread()*float64(interval)))
	if err != nil {
		klog.FromContext(ctx).V(2).Info("A driver has no statistics of a volume", logging.KeyVolumeName, p.Volume.Name, "pod", p.Pod.UID, logging.KeyReason, err.Error())
	}
	e.Err = err
	if r == nil {
		return
	}
	if r.Bytes != nil || r.Inodes != nil {
		e.Bytes, e.Inodes, e.measured = r.Bytes, r.Inodes, c.cfg.Clock.Now()
	}
	if r.Health {
		c.noteHealth(e, r.Conditions)
	}
}

// noteHealth keeps the condition of a volume, and reports it when it has changed.
func (c *Collector) noteHealth(e *entry, conditions []volume.Condition) {
	first, changed := !e.Health, !slices.Equal(e.Conditions, conditions)
	e.Health, e.Conditions = true, conditions
	switch {
	case c.cfg.Health != nil:
		if first || changed {
			c.cfg.Health(e.Pod.UID)
		}
	case c.cfg.Events == nil || !changed:
	case len(conditions) == 0:
		c.cfg.Events.Condition(e.Pod, volume.ReasonNormal, fmt.Sprintf("volume %s: the driver reports no problem any more", e.Key.SpecName))
	default:
		c.cfg.Events.Condition(e.Pod, volume.ReasonAbnormal, fmt.Sprintf("volume %s: %s", e.Key.SpecName, describe(conditions)))
	}
}

// known reports whether the driver was asked.
func (e *entry) known() bool { return e.Bytes != nil || e.Inodes != nil || e.Health || e.Err != nil }

// LatestOf is Latest of the volumes of a pod, in no order.
func (c *Collector) LatestOf(pod types.UID) []volume.Usage {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []volume.Usage
	for _, e := range c.byPod[pod] {
		if e.known() {
			all = append(all, e.Usage)
		}
	}
	return all
}

// Latest lists what is known, sorted by volume and pod. Volumes that were not asked for yet are left out.
func (c *Collector) Latest() []volume.Usage {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []volume.Usage
	for _, e := range c.results {
		if e.known() {
			all = append(all, e.Usage)
		}
	}
	slices.SortFunc(all, func(a, b volume.Usage) int {
		return compare([2]string{a.Volume.Name, string(a.Pod.UID)}, [2]string{b.Volume.Name, string(b.Pod.UID)})
	})
	return all
}

func compare(a, b [2]string) int { return slices.Compare(a[:], b[:]) }
