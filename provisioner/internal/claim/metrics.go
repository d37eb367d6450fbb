package claim

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/measure"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

// Metrics count and time what the controller does.
type Metrics struct {
	// provision has the labels class and source, the kind of the data source, and remove the label class.
	provision, remove measure.Operation
}

// NewMetrics registers the metrics on reg. It panics when they are registered there already, so each
// instance needs a registry of its own.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	return &Metrics{
		provision: measure.NewOperation(reg, "controller_persistentvolumeclaim_provision", measure.Help{
			Done:    "Claims that got a volume, by storage class and kind of data source.",
			Failed:  "Attempts to provision a claim that did not succeed, by storage class and kind of data source.",
			Seconds: "Time from the first request for a volume until its PersistentVolume was saved.",
		}, "class", "source"),
		remove: measure.NewOperation(reg, "controller_persistentvolume_delete", measure.Help{
			Done:    "Volumes that were deleted, by storage class.",
			Failed:  "Attempts to delete a volume that did not succeed, by storage class.",
			Seconds: "Time that successful attempts to delete a volume took.",
		}, "class"),
	}
}

// provisioned counts a claim that got its volume.
func (m *Metrics) provisioned(claim *corev1.PersistentVolumeClaim, took time.Duration) {
	source, _ := view.DataSource(claim)
	m.provision.Done(took, view.ClassName(claim), source.Kind)
}

// provisionFailed counts an attempt in vain.
func (m *Metrics) provisionFailed(claim *corev1.PersistentVolumeClaim) {
	source, _ := view.DataSource(claim)
	m.provision.Failed(view.ClassName(claim), source.Kind)
}

// RegisterUnderWay registers gauges of the volumes with an operation in progress: their number by stage, and how many of them may
// exist without the driver having confirmed it, since when, and whether they are recorded.
func RegisterUnderWay(reg prometheus.Registerer, store *journal.Journal) {
	gauge := func(name, help string, labels prometheus.Labels, value func() float64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, value))
	}
	matching := func(holds func(journal.Intent) bool) []journal.Intent {
		return slices.DeleteFunc(store.List(), func(i journal.Intent) bool { return !holds(i) })
	}
	for _, stage := range []journal.Stage{journal.Creating, journal.Saving, journal.Undoing, journal.Reported} {
		gauge("provisioner_volumes_under_way",
			"Volumes with an operation in progress, by stage: creating, saving (the PersistentVolume), undoing, reported (may exist, and an administrator has to look for it).",
			prometheus.Labels{"stage": string(stage)},
			func() float64 { return float64(len(matching(func(i journal.Intent) bool { return i.Stage == stage }))) })
	}
	gauge("provisioner_volumes_outcome_unknown", "Volumes that may exist because the outcome of a CreateVolume is unknown; the request is repeated.", nil,
		func() float64 { return float64(len(matching(journal.Intent.Unknown))) })
	gauge("provisioner_volumes_outcome_unknown_since_timestamp_seconds", "Unix time since when the outcome of the oldest such CreateVolume is unknown, 0 without one.", nil,
		func() float64 {
			unknown := matching(journal.Intent.Unknown)
			if len(unknown) == 0 {
				return 0
			}
			return float64(slices.MinFunc(unknown, func(a, b journal.Intent) int { return a.Uncertain.Compare(b.Uncertain) }).Uncertain.Unix())
		})
	gauge("provisioner_journal_durable", "1 if volumes in progress are recorded in the API, so that another process finishes or deletes them; 0 if they are forgotten when the process is killed.", nil,
		func() float64 {
			if store.Durable() {
				return 1
			}
			return 0
		})
}
