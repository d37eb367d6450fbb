// Package measure counts and times operations, under the names that dashboards know.
package measure

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Operation is one kind of work on objects.
type Operation struct {
	done, failed *prometheus.CounterVec
	seconds      *prometheus.HistogramVec
}

// Help has the texts of the three metrics of an operation.
type Help struct{ Done, Failed, Seconds string }

// NewOperation registers the metrics of an operation: name_total, name_failed_total and name_duration_seconds. It panics when they are registered already.
func NewOperation(reg prometheus.Registerer, name string, help Help, labels ...string) Operation {
	o := Operation{
		done:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: name + "_total", Help: help.Done}, labels),
		failed:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: name + "_failed_total", Help: help.Failed}, labels),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name + "_duration_seconds", Help: help.Seconds, Buckets: prometheus.DefBuckets}, labels),
	}
	reg.MustRegister(o.done, o.failed, o.seconds)
	return o
}

// Done counts one that succeeded, and how long that took.
func (o Operation) Done(took time.Duration, labels ...string) {
	o.done.WithLabelValues(labels...).Inc()
	o.seconds.WithLabelValues(labels...).Observe(took.Seconds())
}

// Failed counts an attempt that did not succeed.
func (o Operation) Failed(labels ...string) {
	o.failed.WithLabelValues(labels...).Inc()
}
