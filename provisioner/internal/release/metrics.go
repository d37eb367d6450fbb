package release

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

// Metrics count and time deletions, under the names that dashboards know.
type Metrics struct {
	remove, removeErrors *prometheus.CounterVec
	removeSeconds        *prometheus.HistogramVec
}

// NewMetrics registers the metrics on reg. It panics when they are registered there already.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	class := []string{"class"}
	m := &Metrics{
		remove: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "controller_persistentvolume_delete_total", Help: "Volumes that were deleted, by storage class.",
		}, class),
		removeErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "controller_persistentvolume_delete_failed_total", Help: "Attempts to delete a volume that did not succeed, by storage class.",
		}, class),
		removeSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "controller_persistentvolume_delete_duration_seconds",
			Help: "Time that successful attempts to delete a volume took.", Buckets: prometheus.DefBuckets,
		}, class),
	}
	reg.MustRegister(m.remove, m.removeErrors, m.removeSeconds)
	return m
}

// deleted counts a volume that was deleted.
func (m *Metrics) deleted(pv *corev1.PersistentVolume, took time.Duration) {
	m.remove.WithLabelValues(view.VolumeClassName(pv)).Inc()
	m.removeSeconds.WithLabelValues(view.VolumeClassName(pv)).Observe(took.Seconds())
}

// deleteFailed counts an attempt in vain.
func (m *Metrics) deleteFailed(pv *corev1.PersistentVolume) {
	m.removeErrors.WithLabelValues(view.VolumeClassName(pv)).Inc()
}
