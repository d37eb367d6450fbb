package controller

import (
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
	steps, uncertain := map[verdict]int{}, 0
	for _, step := range []verdict{doCreate, doRead, doDelete} {
		steps[step] = 0
	}
	for content := range l.all() {
		last := l.memory.of(content.name, content.uid)
		if step := plan(l.names, content, last); step != doNothing {
			steps[step]++
		}
		if isUncertain(l.names, content, last) {
			uncertain++
		}
	}
	for step, n := range steps {
		out <- prometheus.MustNewConstMetric(r.waiting, prometheus.GaugeValue, float64(n), r.driver, kind, step.String())
	}
	out <- prometheus.MustNewConstMetric(r.uncertain, prometheus.GaugeValue, float64(uncertain), r.driver, kind)
}
