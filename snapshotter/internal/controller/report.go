package controller

import (
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Values of the label kind.
const (
	kindSnapshot      = "snapshot"
	kindGroupSnapshot = "group_snapshot"
)

// Report counts, whenever metrics are read, the contents that the controller that works has something to do with. An instance that does not
// work reports nothing.
type Report struct {
	current                     atomic.Pointer[Controller]
	driver                      string
	waiting, uncertain, orphans *prometheus.Desc
}

var _ prometheus.Collector = (*Report)(nil)

// NewReport registers csi_snapshotter_waiting_contents, csi_snapshotter_uncertain_contents and csi_snapshotter_orphaned_snapshots on reg.
func NewReport(reg prometheus.Registerer, driver string) *Report {
	labels := func(more ...string) []string { return append([]string{"driver_name"}, more...) }
	r := &Report{
		driver: driver,
		waiting: prometheus.NewDesc("csi_snapshotter_waiting_contents",
			"Number of contents that do not have what they ask for, by the next step", labels("kind", "step"), nil),
		uncertain: prometheus.NewDesc("csi_snapshotter_uncertain_contents",
			"Number of contents of which the driver may be taking a snapshot, or may have taken one whose handle is not known", labels("kind"), nil),
		orphans: prometheus.NewDesc("csi_snapshotter_orphaned_snapshots",
			"Number of snapshots of the driver that no content has named in two lists in a row", labels(), nil),
	}
	reg.MustRegister(r)
	return r
}

// show has a controller counted, nil for none.
func (r *Report) show(c *Controller) {
	if r != nil {
		r.current.Store(c)
	}
}

// Describe implements prometheus.Collector.
func (r *Report) Describe(out chan<- *prometheus.Desc) {
	out <- r.waiting
	out <- r.uncertain
	out <- r.orphans
}

// Collect implements prometheus.Collector.
func (r *Report) Collect(out chan<- prometheus.Metric) {
	c := r.current.Load()
	if c == nil || c.Synced() != nil {
		return
	}
	r.collect(out, kindSnapshot, c.snapshots)
	if c.groups != nil {
		r.collect(out, kindGroupSnapshot, c.groups.loop)
	}
	if n, known := c.orphans.count(); known {
		out <- prometheus.MustNewConstMetric(r.orphans, prometheus.GaugeValue, float64(n), r.driver)
	}
}

func (r *Report) collect(out chan<- prometheus.Metric, kind string, l *loop) {
	steps, uncertain := l.waits.sum()
	for step, n := range steps {
		out <- prometheus.MustNewConstMetric(r.waiting, prometheus.GaugeValue, float64(n), r.driver, kind, step.String())
	}
	out <- prometheus.MustNewConstMetric(r.uncertain, prometheus.GaugeValue, float64(uncertain), r.driver, kind)
}

// waits are the contents with a step to make, by name, as each change and each reconciliation leaves them: reading the metrics looks at no content.
type waits struct {
	mu     sync.Mutex
	byName map[string]wait
}

type wait struct {
	step      verdict
	uncertain bool
}

// count notes and returns the next step for a content; the zero record is one that is gone.
func (l *loop) count(name string, r record) verdict {
	var now wait
	if r.name != "" {
		last := l.memory.of(r.name, r.uid)
		now = wait{plan(l.names, r, last), isUncertain(l.names, r, last)}
	}
	l.waits.mu.Lock()
	defer l.waits.mu.Unlock()
	if l.waits.byName == nil {
		l.waits.byName = map[string]wait{}
	}
	if now == (wait{}) {
		delete(l.waits.byName, name)
	} else {
		l.waits.byName[name] = now
	}
	return now.step
}

// sum returns the number of contents by their next step, and of those whose outcome is not known.
func (w *waits) sum() (steps map[verdict]int, uncertain int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	steps = map[verdict]int{doCreate: 0, doRead: 0, doDelete: 0}
	for _, one := range w.byName {
		if one.step != doNothing {
			steps[one.step]++
		}
		if one.uncertain {
			uncertain++
		}
	}
	return steps, uncertain
}
