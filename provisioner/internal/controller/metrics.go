package controller

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/release"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

// Metrics count and time what the controller does, under the names that dashboards know.
type Metrics struct {
	release                    *release.Metrics
	provision, provisionErrors *prometheus.CounterVec
	provisionSeconds           *prometheus.HistogramVec
}

// NewMetrics registers the metrics on reg. It panics when they are registered there already, so each
// instance needs a registry of its own.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	source := []string{"class", "source"}
	m := &Metrics{
		release: release.NewMetrics(reg),
		provision: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "controller_persistentvolumeclaim_provision_total",
			Help: "Claims that got a volume, by storage class and kind of data source.",
		}, source),
		provisionErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "controller_persistentvolumeclaim_provision_failed_total",
			Help: "Attempts to provision a claim that did not succeed, by storage class and kind of data source.",
		}, source),
		provisionSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "controller_persistentvolumeclaim_provision_duration_seconds",
			Help: "Time from the first request for a volume until its PersistentVolume was saved.", Buckets: prometheus.DefBuckets,
		}, source),
	}
	reg.MustRegister(m.provision, m.provisionErrors, m.provisionSeconds)
	return m
}

// labelsOf returns the storage class of a claim and the kind of its data source.
func labelsOf(claim *corev1.PersistentVolumeClaim) []string {
	source, _ := view.DataSource(claim)
	return []string{view.ClassName(claim), source.Kind}
}

// provisioned counts a claim that got its volume.
func (m *Metrics) provisioned(claim *corev1.PersistentVolumeClaim, took time.Duration) {
	labels := labelsOf(claim)
	m.provision.WithLabelValues(labels...).Inc()
	m.provisionSeconds.WithLabelValues(labels...).Observe(took.Seconds())
}

// provisionFailed counts an attempt in vain.
func (m *Metrics) provisionFailed(claim *corev1.PersistentVolumeClaim) {
	m.provisionErrors.WithLabelValues(labelsOf(claim)...).Inc()
}

// underWay are the gauges of volumes with an operation in progress.
type underWay struct {
	store                         *journal.Journal
	stages, unknown, age, durable *prometheus.Desc
}

var _ prometheus.Collector = underWay{}

// NewUnderWay returns gauges of the volumes with an operation in progress: their number by stage, and how many of them may
// exist without the driver having confirmed it, since when, and whether they are recorded.
func NewUnderWay(store *journal.Journal) prometheus.Collector {
	return underWay{
		store: store,
		stages: prometheus.NewDesc("provisioner_volumes_under_way",
			"Volumes with an operation in progress, by stage: creating, saving (the PersistentVolume), undoing, reported (may exist, and an administrator has to look for it).", []string{"stage"}, nil),
		unknown: prometheus.NewDesc("provisioner_volumes_outcome_unknown",
			"Volumes that may exist because the outcome of a CreateVolume is unknown; the request is repeated.", nil, nil),
		age: prometheus.NewDesc("provisioner_volumes_outcome_unknown_since_timestamp_seconds",
			"Unix time since when the outcome of the oldest such CreateVolume is unknown, 0 without one.", nil, nil),
		durable: prometheus.NewDesc("provisioner_journal_durable",
			"1 if volumes in progress are recorded in the API, so that another process finishes or deletes them; 0 if they are forgotten when the process is killed.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (u underWay) Describe(ch chan<- *prometheus.Desc) {
	ch <- u.stages
	ch <- u.unknown
	ch <- u.age
	ch <- u.durable
}

// Collect implements prometheus.Collector.
func (u underWay) Collect(ch chan<- prometheus.Metric) {
	count := map[journal.Stage]int{journal.Creating: 0, journal.Saving: 0, journal.Undoing: 0, journal.Reported: 0}
	var unknown int
	var since time.Time
	for _, intent := range u.store.List() {
		count[intent.Stage]++
		if intent.Unknown() {
			unknown++
			if since.IsZero() || intent.Uncertain.Before(since) {
				since = intent.Uncertain
			}
		}
	}
	for stage, n := range count {
		ch <- prometheus.MustNewConstMetric(u.stages, prometheus.GaugeValue, float64(n), stage.String())
	}
	ch <- prometheus.MustNewConstMetric(u.unknown, prometheus.GaugeValue, float64(unknown))
	var oldest float64
	if unknown > 0 {
		oldest = float64(since.Unix())
	}
	ch <- prometheus.MustNewConstMetric(u.age, prometheus.GaugeValue, oldest)
	var durable float64
	if u.store.Durable() {
		durable = 1
	}
	ch <- prometheus.MustNewConstMetric(u.durable, prometheus.GaugeValue, durable)
}
