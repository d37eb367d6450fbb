// Package procmetrics makes the registries of components, with what each process says of itself. It is a package of its own so that components
// that call no driver need no gRPC.
package procmetrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// NewRegistry returns a registry that collects the Go runtime and the process, process_start_time_seconds among others.
func NewRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}
