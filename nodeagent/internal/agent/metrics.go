package agent

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/longshore-csi/longshore/kubeletplugin/resolve"
)

const unsupportedHelp = "Volumes of pods that asked for a feature that this node agent does not support, by feature."

// unsupportedCounter registers csi_node_unsupported_total, with all features at zero, and returns the function that
// counts. Nil counts without exposing.
func unsupportedCounter(reg prometheus.Registerer) (func(feature string), error) {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "csi_node_unsupported_total",
		Help: unsupportedHelp,
	}, []string{"feature"})
	for _, f := range resolve.UnsupportedFeatures() {
		vec.WithLabelValues(f.Name)
	}
	if reg != nil {
		if err := reg.Register(vec); err != nil {
			return nil, fmt.Errorf("register csi_node_unsupported_total: %w", err)
		}
	}
	return func(feature string) { vec.WithLabelValues(feature).Inc() }, nil
}

// orphans measures the sweeps for directories of pods that are gone, by the kubelet's metrics.
type orphans struct {
	found, failed prometheus.Gauge
	last          sets.Set[types.UID]
}

func newOrphans(reg prometheus.Registerer) (*orphans, error) {
	o := &orphans{
		found: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kubelet_orphan_pod_cleaned_volumes", Help: "Pods that are gone and whose directories the last sweep has found.",
		}),
		failed: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kubelet_orphan_pod_cleaned_volumes_errors", Help: "Those of them that the sweep before has found, too: their volumes could not be removed.",
		}),
	}
	if reg == nil {
		return o, nil
	}
	for _, c := range []prometheus.Collector{o.found, o.failed} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics of orphaned pods: %w", err)
		}
	}
	return o, nil
}

// swept notes what a sweep has found.
func (o *orphans) swept(found sets.Set[types.UID]) {
	o.found.Set(float64(found.Len()))
	o.failed.Set(float64(found.Intersection(o.last).Len()))
	o.last = found
}
