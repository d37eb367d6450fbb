package controller

import (
	"sync/atomic"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/ptr"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
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

// Report counts, whenever metrics are read, what the caches of the controller that works have: snapshots by state, and contents that lack
// the object that they belong to. An instance that does not work reports nothing.
type Report struct {
	current             atomic.Pointer[Controller]
	snapshots, dangling *prometheus.Desc
}

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

// show has a controller counted, nil for none.
func (r *Report) show(c *Controller) {
	if r != nil {
		r.current.Store(c)
	}
}

// Describe implements prometheus.Collector.
func (r *Report) Describe(out chan<- *prometheus.Desc) {
	out <- r.snapshots
	out <- r.dangling
}

// Collect implements prometheus.Collector.
func (r *Report) Collect(out chan<- prometheus.Metric) {
	c := r.current.Load()
	if c == nil || c.Synced() != nil {
		return
	}
	states := map[string]int{stateReady: 0, statePending: 0, stateFailed: 0, stateDeleting: 0, stateMissing: 0}
	for s := range c.snapshots.All() {
		states[c.stateOf(s)]++
	}
	for state, n := range states {
		out <- prometheus.MustNewConstMetric(r.snapshots, prometheus.GaugeValue, float64(n), state)
	}
	type labels struct{ driver, policy, problem string }
	dangling := map[labels]int{}
	for content := range c.contents.All() {
		if problem := c.danglingProblem(content); problem != "" {
			dangling[labels{content.Spec.Driver, string(content.Spec.DeletionPolicy), problem}]++
		}
	}
	for l, n := range dangling {
		out <- prometheus.MustNewConstMetric(r.dangling, prometheus.GaugeValue, float64(n), l.driver, l.policy, l.problem)
	}
}

// stateOf returns the value of the label state for a snapshot.
func (c *Controller) stateOf(s *snapshotv1.VolumeSnapshot) string {
	_, found := c.contents.Get("", boundName(s))
	status := statusOf(s)
	switch {
	case s.DeletionTimestamp != nil:
		return stateDeleting
	case boundName(s) != "" && !found:
		return stateMissing
	case status.Error != nil:
		return stateFailed
	case ptr.Deref(status.ReadyToUse, false):
		return stateReady
	}
	return statePending
}

// danglingProblem returns what a content lacks: its VolumeSnapshot, once it was bound to one, or, if it belongs to a group snapshot, that. Empty:
// nothing. A content that is retained after its snapshot lacks it rightly, which its deletion policy says.
func (c *Controller) danglingProblem(content *snapshotv1.VolumeSnapshotContent) string {
	ref := content.Spec.VolumeSnapshotRef
	s, found := c.snapshots.Get(ref.Namespace, ref.Name)
	switch on, known := c.served(); {
	case ref.UID != "" && (!found || s.UID != ref.UID):
		return problemNoSnapshot
	case !known:
		return ""
	case groupHandle(content) != "" && (on == nil || !on.hasGroup(content.Spec.Driver, groupHandle(content))):
		return problemNoGroup
	}
	return ""
}

// groupHandle returns the handle of the group snapshot that a content belongs to, empty for none.
func groupHandle(content *snapshotv1.VolumeSnapshotContent) string {
	if content.Status != nil && ptr.Deref(content.Status.VolumeGroupSnapshotHandle, "") != "" {
		return *content.Status.VolumeGroupSnapshotHandle
	}
	return content.Annotations[snapshotapi.AnnVolumeGroupSnapshotHandle]
}

// hasGroup reports whether a group content has a handle of a driver.
func (g *groups) hasGroup(driver, handle string) bool {
	for _, of := range g.groupContents.ByIndex(indexGroup, handle) {
		if of.Spec.Driver == driver {
			return true
		}
	}
	return false
}
