package agent

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/longshore-csi/longshore/kubeletplugin/unsupported"
)

const unsupportedHelp = "Volumes of pods that asked for a feature that this node agent does not support, by feature."

// unsupportedCounter registers csi_node_unsupported_total, with all features at zero, and returns the function that
// counts. Nil counts without exposing.
func unsupportedCounter(reg prometheus.Registerer) (func(feature string), error) {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "csi_node_unsupported_total",
		Help: unsupportedHelp,
	}, []string{"feature"})
	for _, f := range unsupported.Features() {
		vec.WithLabelValues(f.Name)
	}
	if reg != nil {
		if err := reg.Register(vec); err != nil {
			return nil, fmt.Errorf("register csi_node_unsupported_total: %w", err)
		}
	}
	return func(feature string) { vec.WithLabelValues(feature).Inc() }, nil
}
