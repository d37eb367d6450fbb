package reconcile

import "k8s.io/client-go/util/workqueue"

// noMetrics counts nothing. (Without a provider client-go takes a global one.)
type noMetrics struct{}

type noMetric struct{}

// Inc does nothing.
func (noMetric) Inc() {}

// Dec does nothing.
func (noMetric) Dec() {}

// Set does nothing.
func (noMetric) Set(float64) {}

// Observe does nothing.
func (noMetric) Observe(float64) {}

// NewDepthMetric implements workqueue.MetricsProvider.
func (noMetrics) NewDepthMetric(string) workqueue.GaugeMetric { return noMetric{} }

// NewAddsMetric implements workqueue.MetricsProvider.
func (noMetrics) NewAddsMetric(string) workqueue.CounterMetric { return noMetric{} }

// NewLatencyMetric implements workqueue.MetricsProvider.
func (noMetrics) NewLatencyMetric(string) workqueue.HistogramMetric { return noMetric{} }

// NewWorkDurationMetric implements workqueue.MetricsProvider.
func (noMetrics) NewWorkDurationMetric(string) workqueue.HistogramMetric { return noMetric{} }

// NewUnfinishedWorkSecondsMetric implements workqueue.MetricsProvider.
func (noMetrics) NewUnfinishedWorkSecondsMetric(string) workqueue.SettableGaugeMetric {
	return noMetric{}
}

// NewLongestRunningProcessorSecondsMetric implements workqueue.MetricsProvider.
func (noMetrics) NewLongestRunningProcessorSecondsMetric(string) workqueue.SettableGaugeMetric {
	return noMetric{}
}

// NewRetriesMetric implements workqueue.MetricsProvider.
func (noMetrics) NewRetriesMetric(string) workqueue.CounterMetric { return noMetric{} }
