package controller

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Values of the label state of snapshot_controller_snapshots.
const (
	stateReady    = "ready"
	statePending  = "pending"
	stateFailed   = "failed"
	stateDeleting = "deleting"
	stateMissing  = "content_missing"
)

// Values of the label problem of snapshot_controller_dangling_contents.
const (
	problemNoSnapshot = "no_snapshot"
	problemNoGroup    = "no_group"
)

// Report counts what the controller that works has: snapshots by state, and contents that lack the object that they belong to. Each reconciliation notes what
// it has seen, so that reading the metrics costs nothing. An instance that does not work reports nothing.
type Report struct {
	snapshots, dangling *prometheus.Desc

	mu     sync.Mutex
	noted  map[string]noted // by key; nil: no instance works here
	states map[string]int
	lacks  map[lack]int
}

// noted is what is counted of a key.
type noted struct {
	state string // empty: there is no snapshot
	lacks []lack
}

// lack are the labels of a content that lacks what it belongs to.
type lack struct{ driver, policy, problem string }

var _ prometheus.Collector = (*Report)(nil)

// NewReport registers snapshot_controller_snapshots and snapshot_controller_dangling_contents on reg.
func NewReport(reg prometheus.Registerer) *Report {
	r := &Report{
		snapshots: prometheus.NewDesc("snapshot_controller_snapshots", "Number of VolumeSnapshots by state", []string{"state"}, nil),
		dangling: prometheus.NewDesc("snapshot_controller_dangling_contents",
			"Number of VolumeSnapshotContents whose VolumeSnapshot, or group snapshot, does not exist", []string{"driver_name", "deletion_policy", "problem"}, nil),
	}
	reg.MustRegister(r)
	return r
}

// begin begins to count, end ends it.
func (r *Report) begin() {
	if r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.noted, r.lacks = map[string]noted{}, map[lack]int{}
		r.states = map[string]int{stateReady: 0, statePending: 0, stateFailed: 0, stateDeleting: 0, stateMissing: 0}
	}
}

func (r *Report) end() {
	if r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.noted = nil
	}
}

// note replaces what is counted of a snapshot and the contents that refer to it. o is nil where there is none. Group snapshots are not counted.
func (r *Report) note(p *pairs, key string, o *owner, contents []*content) {
	if r == nil || p != p.singles {
		return
	}
	now := noted{state: p.stateOf(o)}
	for _, c := range contents {
		if problem := p.danglingProblem(o, c); problem != "" {
			now.lacks = append(now.lacks, lack{c.driver, string(c.policy), problem})
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.noted == nil {
		return
	}
	r.count(r.noted[key], -1)
	r.count(now, 1)
	if now.state == "" && len(now.lacks) == 0 {
		delete(r.noted, key)
	} else {
		r.noted[key] = now
	}
}

// count adds to the counters.
func (r *Report) count(of noted, n int) {
	if of.state != "" {
		r.states[of.state] += n
	}
	for _, l := range of.lacks {
		if r.lacks[l] += n; r.lacks[l] == 0 {
			delete(r.lacks, l)
		}
	}
}

// Describe implements prometheus.Collector.
func (r *Report) Describe(out chan<- *prometheus.Desc) {
	out <- r.snapshots
	out <- r.dangling
}

// Collect implements prometheus.Collector.
func (r *Report) Collect(out chan<- prometheus.Metric) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.noted == nil {
		return
	}
	for state, n := range r.states {
		out <- prometheus.MustNewConstMetric(r.snapshots, prometheus.GaugeValue, float64(n), state)
	}
	for l, n := range r.lacks {
		out <- prometheus.MustNewConstMetric(r.dangling, prometheus.GaugeValue, float64(n), l.driver, l.policy, l.problem)
	}
}

// stateOf returns the value of the label state for a snapshot, empty for none.
func (p *pairs) stateOf(o *owner) string {
	switch {
	case o == nil:
		return ""
	case o.GetDeletionTimestamp() != nil:
		return stateDeleting
	case o.bound() != "" && p.findContent(o.bound()) == nil:
		return stateMissing
	case o.status != nil && o.status.Error != nil:
		return stateFailed
	case o.isReady():
		return stateReady
	}
	return statePending
}

// danglingProblem returns what a content lacks: its VolumeSnapshot, once it was bound to one, or, if it belongs to a group snapshot, that. Empty:
// nothing. A content that is retained after its snapshot lacks it rightly, which its deletion policy says. o is the snapshot of that name.
func (p *pairs) danglingProblem(o *owner, c *content) string {
	switch on, known := p.served(); {
	case c.ref.UID != "" && (o == nil || o.GetUID() != c.ref.UID):
		return problemNoSnapshot
	case !known:
		return ""
	case groupHandle(c.single) != "" && (on == nil || !on.hasGroup(c.driver, groupHandle(c.single))):
		return problemNoGroup
	}
	return ""
}
