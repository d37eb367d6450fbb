package capacity

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are gauges of the objects, under the names that dashboards know.
type Metrics struct {
	goal, current, obsolete *prometheus.Desc
	// at is the controller at work; one after the other may be.
	at atomic.Pointer[Controller]
}

var _ prometheus.Collector = (*Metrics)(nil)

// NewMetrics returns gauges of nothing.
func NewMetrics() *Metrics {
	desc := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }
	return &Metrics{
		goal:     desc("csistoragecapacities_desired_goal", "CSIStorageCapacity objects that are to be published."),
		current:  desc("csistoragecapacities_desired_current", "CSIStorageCapacity objects that are to be published and are."),
		obsolete: desc("csistoragecapacities_obsolete", "CSIStorageCapacity objects that are to be deleted."),
	}
}

// Watch counts for a controller from now on; nil: for none.
func (m *Metrics) Watch(c *Controller) {
	m.at.Store(c)
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	prometheus.DescribeByCollect(m, ch)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	var goal, current, obsolete int
	if c := m.at.Load(); c != nil {
		goal, current, obsolete = c.count()
	}
	ch <- prometheus.MustNewConstMetric(m.goal, prometheus.GaugeValue, float64(goal))
	ch <- prometheus.MustNewConstMetric(m.current, prometheus.GaugeValue, float64(current))
	ch <- prometheus.MustNewConstMetric(m.obsolete, prometheus.GaugeValue, float64(obsolete))
}

// count returns how many objects are to be, how many of these are, and how many are not to be.
func (c *Controller) count() (goal, current, obsolete int) {
	objects := c.objects.List()
	seen := make(map[item]struct{}, len(objects))
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, object := range objects {
		i := itemOf(object)
		_, wanted := c.goal[i]
		if _, twice := seen[i]; twice || !wanted {
			obsolete++
			continue
		}
		seen[i] = struct{}{}
	}
	return len(c.goal), len(seen), obsolete
}
