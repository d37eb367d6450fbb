package kubemetrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/longshore-csi/longshore/csikit/leader"
)

// Leader measures the leader election.
type Leader struct {
	status   *prometheus.GaugeVec
	slowpath *prometheus.CounterVec
}

var _ leader.Metrics = (*Leader)(nil)

// NewLeader registers leader_election_master_status and leader_election_slowpath_total on reg. It panics if they are
// registered already.
func NewLeader(reg prometheus.Registerer) *Leader {
	l := &Leader{status: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "leader_election_master_status",
		Help: "Whether this instance leads (1) or waits (0), by the name of the lease.",
	}, []string{"name"}), slowpath: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "leader_election_slowpath_total",
		Help: "Renewals of the lease that had to read it first, because another client had changed it, by the name of the lease.",
	}, []string{"name"})}
	reg.MustRegister(l.status, l.slowpath)
	return l
}

// On implements leader.Metrics.
func (l *Leader) On(name string) { l.status.WithLabelValues(name).Set(1) }

// Off implements leader.Metrics.
func (l *Leader) Off(name string) { l.status.WithLabelValues(name).Set(0) }

// SlowpathExercised implements leader.Metrics.
func (l *Leader) SlowpathExercised(name string) { l.slowpath.WithLabelValues(name).Inc() }
