package kubeletplugin

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	csimetrics "github.com/longshore-csi/longshore/csikit/metrics"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// Values of the label state: what is there, and what is to be there.
const (
	stateActual  = "actual_state_of_world"
	stateDesired = "desired_state_of_world"
)

// metrics are those of a kubelet about its volumes, with the kubelet's names and labels.
type metrics struct {
	operations, overall     *prometheus.HistogramVec
	recovered, notRecovered prometheus.Counter
}

func newMetrics() *metrics {
	return &metrics{
		operations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "storage_operation_duration_seconds", Help: "Time that operations on volumes took, by driver, operation and result.",
			Buckets: csimetrics.Buckets(), ConstLabels: prometheus.Labels{csimetrics.LabelMigrated: "false"},
		}, []string{"volume_plugin", "operation_name", "status"}),
		overall: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "volume_operation_total_seconds", Help: "Time from the request of a pod until its volume was mounted, with all waits and retries.",
			Buckets: csimetrics.Buckets(),
		}, []string{"plugin_name", "operation_name"}),
		recovered: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "reconstruct_volume_operations_total", Help: "Volumes of pods, and other paths that may belong to a volume, that were found on disk at the start.",
		}),
		notRecovered: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "reconstruct_volume_operations_errors_total", Help: "Those of them that have no usable record.",
		}),
	}
}

// register registers the metrics of the plugin, until unregister.
func (p *Plugin) register() error {
	if p.cfg.Registerer == nil {
		return nil
	}
	for _, c := range p.collectors() {
		if err := p.cfg.Registerer.Register(c); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

// unregister lets another plugin for the same directory register.
func (p *Plugin) unregister() {
	if p.cfg.Registerer == nil {
		return
	}
	for _, c := range p.collectors() {
		p.cfg.Registerer.Unregister(c)
	}
}

func (p *Plugin) collectors() []prometheus.Collector {
	m := p.metrics
	all := []prometheus.Collector{m.operations, m.overall, m.recovered, m.notRecovered, newTotals(p)}
	if p.collector != nil {
		all = append(all, p.collector)
	}
	return all
}

// pluginName is how a kubelet names a driver in its metrics.
func pluginName(driver string) string { return layout.Plugin + ":" + driver }

// measure implements volume.Config.Measure.
func (m *metrics) measure(x volume.Measurement) {
	if x.Operation == volume.OperationOverallMount {
		m.overall.WithLabelValues(pluginName(x.Driver), x.Operation).Observe(x.Took.Seconds())
		return
	}
	status := "success"
	if x.Err != nil {
		status = "fail-unknown"
	}
	m.operations.WithLabelValues(pluginName(x.Driver), x.Operation, status).Observe(x.Took.Seconds())
}

// count counts what was found on disk.
func (m *metrics) count(found *volume.Found) {
	bad := len(found.Lost) + len(found.Foreign)
	m.notRecovered.Add(float64(bad))
	for i := range found.Volumes {
		bad += len(found.Volumes[i].Targets)
	}
	m.recovered.Add(float64(bad))
}

// totals are the numbers of volumes and of registrations, which are counted when they are asked for.
type totals struct {
	plugin           *Plugin
	volumes, drivers *prometheus.Desc
}

func newTotals(p *Plugin) *totals {
	return &totals{
		plugin:  p,
		volumes: prometheus.NewDesc("volume_manager_total_volumes", "Number of volumes of pods that are mounted, and that are wanted, by driver.", []string{"plugin_name", "state"}, nil),
		drivers: prometheus.NewDesc("plugin_manager_total_plugins", "Number of registration sockets that are registered, and that are there.", []string{"socket_path", "state"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (t *totals) Describe(out chan<- *prometheus.Desc) {
	out <- t.volumes
	out <- t.drivers
}

// Collect implements prometheus.Collector.
func (t *totals) Collect(out chan<- prometheus.Metric) {
	for key, n := range t.count() {
		out <- prometheus.MustNewConstMetric(key.desc, prometheus.GaugeValue, float64(n), key.name, key.state)
	}
}

type total struct {
	desc        *prometheus.Desc
	name, state string
}

func (t *totals) count() map[total]int {
	n := map[total]int{}
	for _, v := range t.plugin.volumes.Dump() {
		for _, u := range v.Uses {
			if u.Mount == volume.MountPublished {
				n[total{t.volumes, pluginName(v.Driver), stateActual}]++
			}
			if u.Wanted {
				n[total{t.volumes, pluginName(v.Driver), stateDesired}]++
			}
		}
	}
	for _, s := range t.plugin.watcher.Status() {
		n[total{t.drivers, s.Path, stateDesired}]++
		if s.Registered {
			n[total{t.drivers, s.Path, stateActual}]++
		}
	}
	return n
}
