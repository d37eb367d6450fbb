package kubemetrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/longshore-csi/longshore/csikit/leader"
)

// Leader measures who leads: 1 for this instance, 0 for another.
type Leader struct {
	status *prometheus.GaugeVec
}

var _ leader.Metrics = (*Leader)(nil)

// NewLeader registers leader_election_master_status on reg. It panics when it is there already.
func NewLeader(reg prometheus.Registerer) *Leader {
	l := &Leader{status: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "leader_election_master_status",
		Help: "Whether this instance leads (1) or waits (0), by the name of the lease.",
	}, []string{"name"})}
	reg.MustRegister(l.status)
	return l
}

// On implements leader.Metrics.
func (l *Leader) On(name string) { l.status.WithLabelValues(name).Set(1) }

// Off implements leader.Metrics.
func (l *Leader) Off(name string) { l.status.WithLabelValues(name).Set(0) }
