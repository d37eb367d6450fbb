package reconcile

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"
)

// ageQueue is a first-in-first-out list that knows how long its head waits. Keys of high priority have a list of their
// own, which is served before the other. The workqueue around it keeps keys from being in it twice.
type ageQueue[K comparable] struct {
	// highPriority is Config.HighPriority.
	highPriority func(key K) bool

	mu    sync.Mutex
	lines [2][]waitingKey[K]
}

type waitingKey[K comparable] struct {
	key   K
	since time.Time
}

var _ workqueue.Queue[string] = (*ageQueue[string])(nil)

// Touch implements workqueue.Queue: a key that is added again keeps its place.
func (q *ageQueue[K]) Touch(K) {}

// Push implements workqueue.Queue.
func (q *ageQueue[K]) Push(key K) {
	line := 1
	if q.highPriority != nil && q.highPriority(key) {
		line = 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lines[line] = append(q.lines[line], waitingKey[K]{key: key, since: time.Now()})
}

// Len implements workqueue.Queue.
func (q *ageQueue[K]) Len() int { return q.count() }

// Pop implements workqueue.Queue.
func (q *ageQueue[K]) Pop() K {
	q.mu.Lock()
	defer q.mu.Unlock()
	line := &q.lines[0]
	if len(*line) == 0 {
		line = &q.lines[1]
	}
	head := (*line)[0]
	(*line)[0] = waitingKey[K]{}
	*line = (*line)[1:]
	return head.key
}

func (q *ageQueue[K]) count() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.lines[0]) + len(q.lines[1])
}

// oldest returns how long the key waits that has been waiting longest; 0 when none does.
func (q *ageQueue[K]) oldest(now time.Time) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	var age time.Duration
	for _, line := range q.lines {
		if len(line) > 0 {
			age = max(age, now.Sub(line[0].since))
		}
	}
	return age
}

// ageGauge measures the queue when it is asked.
func ageGauge[K comparable](name string, q *ageQueue[K]) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "workqueue_oldest_item_age_seconds",
		Help:        "How long the item waits that has been waiting longest.",
		ConstLabels: prometheus.Labels{"name": name},
	}, func() float64 { return q.oldest(time.Now()).Seconds() })
}

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
