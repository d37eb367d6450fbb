package controller

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are those of all controllers of a process, which run one after the other. Their names are those of Kubernetes' redesign of the health monitor, but
// the duration of a sweep.
type Metrics struct {
	duration *prometheus.HistogramVec
	total    *prometheus.CounterVec
	status   *prometheus.GaugeVec
	dropped  prometheus.Counter
	unknown  *prometheus.CounterVec
	sweep    prometheus.Gauge
}

// NewMetrics registers the metrics with reg.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "csi_volume_health_probe_duration_seconds", Help: "Duration of the calls that read the health of volumes.",
			Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 30, 60},
		}, []string{"method"}),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "csi_volume_health_probe_total", Help: "Calls that read the health of volumes.",
		}, []string{"method", "result"}),
		status: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "csi_controller_volume_health_status", Help: "1 for each category of problems that the driver reports of the volume of a claim.",
		}, []string{"namespace", "persistentvolumeclaim", "status"}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "csi_volume_health_status_writes_dropped_total", Help: "Writes of the health of a claim that the API server refused or dropped.",
		}),
		unknown: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "csi_volume_health_unknown_condition_total", Help: "Answers with a category of problems that Kubernetes does not have.",
		}, []string{"status"}),
		sweep: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "csi_volume_health_sweep_duration_seconds", Help: "Duration of the last sweep that read the health of all volumes.",
		}),
	}
	for _, c := range []prometheus.Collector{m.duration, m.total, m.status, m.dropped, m.unknown, m.sweep} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics of the health of volumes: %w", err)
		}
	}
	return m, nil
}

// called counts a call that began at start.
func (m *Metrics) called(method string, start time.Time, err error) {
	result := "success"
	if err != nil {
		result = "error"
	}
	m.duration.WithLabelValues(method).Observe(time.Since(start).Seconds())
	m.total.WithLabelValues(method, result).Inc()
}

// setStatus replaces the categories that a claim had by those that it has.
func (m *Metrics) setStatus(namespace, claim string, had, has []string) {
	for _, category := range had {
		m.status.DeleteLabelValues(namespace, claim, category)
	}
	for _, category := range has {
		m.status.WithLabelValues(namespace, claim, category).Set(1)
	}
}
