package kubemetrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"
)

// Queues measures work queues, by name. It is a workqueue.MetricsProvider.
type Queues struct {
	depth, unfinished, longest *prometheus.GaugeVec
	adds, retries              *prometheus.CounterVec
	latency, duration          *prometheus.HistogramVec
}

var _ workqueue.MetricsProvider = (*Queues)(nil)

// NewQueues registers workqueue_* on reg. It panics when they are there already: that is a mistake in the program.
func NewQueues(reg prometheus.Registerer) *Queues {
	labels := []string{"name"}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "workqueue", Name: name, Help: help}, labels)
	}
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "workqueue", Name: name, Help: help}, labels)
	}
	histogram := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "workqueue", Name: name, Help: help,
			Buckets: prometheus.ExponentialBuckets(1e-8, 10, 12), // 10ns to 1000s, as Kubernetes has it
		}, labels)
	}
	q := &Queues{
		depth:      gauge("depth", "How many items wait."),
		unfinished: gauge("unfinished_work_seconds", "How many seconds of work are in progress and not yet observed by work_duration."),
		longest:    gauge("longest_running_processor_seconds", "How many seconds the longest running worker has been at its item."),
		adds:       counter("adds_total", "How many items were added."),
		retries:    counter("retries_total", "How many items were added to be worked on later."),
		latency:    histogram("queue_duration_seconds", "How long an item waits before it is worked on."),
		duration:   histogram("work_duration_seconds", "How long working on an item takes."),
	}
	reg.MustRegister(q.depth, q.unfinished, q.longest, q.adds, q.retries, q.latency, q.duration)
	return q
}

// NewDepthMetric implements workqueue.MetricsProvider.
func (q *Queues) NewDepthMetric(name string) workqueue.GaugeMetric {
	return q.depth.WithLabelValues(name)
}

// NewAddsMetric implements workqueue.MetricsProvider.
func (q *Queues) NewAddsMetric(name string) workqueue.CounterMetric {
	return q.adds.WithLabelValues(name)
}

// NewLatencyMetric implements workqueue.MetricsProvider.
func (q *Queues) NewLatencyMetric(name string) workqueue.HistogramMetric {
	return q.latency.WithLabelValues(name)
}

// NewWorkDurationMetric implements workqueue.MetricsProvider.
func (q *Queues) NewWorkDurationMetric(name string) workqueue.HistogramMetric {
	return q.duration.WithLabelValues(name)
}

// NewUnfinishedWorkSecondsMetric implements workqueue.MetricsProvider.
func (q *Queues) NewUnfinishedWorkSecondsMetric(name string) workqueue.SettableGaugeMetric {
	return q.unfinished.WithLabelValues(name)
}

// NewLongestRunningProcessorSecondsMetric implements workqueue.MetricsProvider.
func (q *Queues) NewLongestRunningProcessorSecondsMetric(name string) workqueue.SettableGaugeMetric {
	return q.longest.WithLabelValues(name)
}

// NewRetriesMetric implements workqueue.MetricsProvider.
func (q *Queues) NewRetriesMetric(name string) workqueue.CounterMetric {
	return q.retries.WithLabelValues(name)
}
