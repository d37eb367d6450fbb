// Package metrics measures CSI calls under the names, labels and buckets that
// dashboards for Kubernetes CSI components already use. Each component has its
// own registry, of package procmetrics; nothing is registered globally.
//
// It is for the calls between a component and a driver. Metrics of work
// queues, leader election and the Kubernetes API are in package kubemetrics,
// as they need a Kubernetes client.
package metrics

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

const (
	// SidecarOperations is the histogram of calls that a component makes to a driver.
	SidecarOperations = "csi_sidecar_operations_seconds"
	// PluginOperations is the histogram of calls that a driver serves.
	PluginOperations = "csi_plugin_operations_seconds"

	// LabelDriver holds the name of the driver.
	LabelDriver = "driver_name"
	// LabelMethod holds the full gRPC method, as in /csi.v1.Controller/CreateVolume.
	LabelMethod = "method_name"
	// LabelCode holds the name of the gRPC status code, as in DeadlineExceeded.
	LabelCode = "grpc_status_code"
	// LabelMigrated holds whether a call is for a volume of an in-tree plugin ("true" or "false"). Only calls to drivers that
	// replace such a plugin have it, see ForMigration.
	LabelMigrated = "migrated"

	// UnknownDriver is the driver label until SetDriverName is called.
	UnknownDriver = "unknown-driver"
	// NotGRPC is the code label of an error that carries no gRPC status.
	NotGRPC = "unknown-non-grpc"
)

// Buckets returns the upper bounds in seconds of both histograms.
func Buckets() []float64 {
	return []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}
}

// CSI measures CSI calls. It is safe for concurrent use. Several CSI values on
// one registry share the histogram and differ by their driver name.
type CSI struct {
	calls          *histogram
	replacesPlugin func(driver string) bool
	driver         atomic.Pointer[string]
}

// Option changes a CSI that NewSidecarCSI makes.
type Option func(*CSI)

// ForMigration adds the label migrated to all calls to a driver for which replacesPlugin returns true: one that
// replaces an in-tree plugin. The label appears with the name of the driver. WithMigrated decides about its value.
func ForMigration(replacesPlugin func(driver string) bool) Option {
	return func(m *CSI) { m.replacesPlugin = replacesPlugin }
}

// migratedKey is the key under which WithMigrated keeps its value.
type migratedKey struct{}

// WithMigrated marks the calls that are made with the context that it returns: whether their volume is one of an in-tree plugin.
func WithMigrated(ctx context.Context, migrated bool) context.Context {
	return context.WithValue(ctx, migratedKey{}, migrated)
}

func isMigrated(ctx context.Context) bool {
	migrated, _ := ctx.Value(migratedKey{}).(bool)
	return migrated
}

// NewSidecarCSI returns the metric csi_sidecar_operations_seconds on reg, for
// components that call a driver. A nil reg measures without exposing. It
// panics if the name is taken by a different kind of metric.
func NewSidecarCSI(reg prometheus.Registerer, options ...Option) *CSI {
	m := newCSI(reg, SidecarOperations, "Time that calls to the CSI driver took, by method and gRPC status code.")
	for _, o := range options {
		o(m)
	}
	return m
}

// NewPluginCSI returns the metric csi_plugin_operations_seconds on reg, for
// drivers. A nil reg measures without exposing. It panics if the name is taken
// by a different kind of metric.
func NewPluginCSI(reg prometheus.Registerer) *CSI {
	return newCSI(reg, PluginOperations, "Time that the CSI driver took to serve calls, by method and gRPC status code.")
}

func newCSI(reg prometheus.Registerer, name, help string) *CSI {
	vec := func(labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: Buckets()}, labels)
	}
	calls := &histogram{
		plain:        vec(LabelDriver, LabelMethod, LabelCode),
		withMigrated: vec(LabelDriver, LabelMethod, LabelCode, LabelMigrated),
	}
	return &CSI{calls: registered(reg, name, calls), replacesPlugin: func(string) bool { return false }}
}

// histogram is one metric in two forms, without and with the label migrated: which of them a driver needs is known only after
// the first calls to it. To a registry both are the same metric, as its name and its constant labels are.
type histogram struct {
	plain, withMigrated *prometheus.HistogramVec
}

// Describe implements prometheus.Collector.
func (h *histogram) Describe(ch chan<- *prometheus.Desc) { h.plain.Describe(ch) }

// Collect implements prometheus.Collector.
func (h *histogram) Collect(ch chan<- prometheus.Metric) {
	h.plain.Collect(ch)
	h.withMigrated.Collect(ch)
}

// registered returns h, or the equal one that reg already has.
func registered(reg prometheus.Registerer, name string, h *histogram) *histogram {
	if reg == nil {
		return h
	}
	err := reg.Register(h)
	if err == nil {
		return h
	}
	var taken prometheus.AlreadyRegisteredError
	if errors.As(err, &taken) {
		if old, ok := taken.ExistingCollector.(*histogram); ok {
			return old
		}
	}
	panic(fmt.Sprintf("register metric %s: %v", name, err))
}

// SetDriverName sets the driver label of all later observations.
func (m *CSI) SetDriverName(name string) { m.driver.Store(&name) }

// Observe records that a call of method ended with err after d.
func (m *CSI) Observe(method string, d time.Duration, err error) { m.observe(method, d, err, false) }

func (m *CSI) observe(method string, d time.Duration, err error, migrated bool) {
	driver := UnknownDriver
	if name := m.driver.Load(); name != nil && *name != "" {
		driver = *name
	}
	calls, labels := m.calls.plain, []string{driver, method, codeLabel(err)}
	if m.replacesPlugin(driver) {
		calls, labels = m.calls.withMigrated, append(labels, strconv.FormatBool(migrated))
	}
	calls.WithLabelValues(labels...).Observe(d.Seconds())
}

func codeLabel(err error) string {
	st, ok := status.FromError(err)
	if !ok {
		return NotGRPC
	}
	return st.Code().String()
}

// UnaryClientInterceptor returns an interceptor that measures each call made.
func (m *CSI) UnaryClientInterceptor() grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		start := time.Now()
		err := call(ctx, method, req, reply, cc, opts...)
		m.observe(method, time.Since(start), err, isMigrated(ctx))
		return err
	}
}

// UnaryServerInterceptor returns an interceptor that measures each call served.
func (m *CSI) UnaryServerInterceptor() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		start := time.Now()
		reply, err := handle(ctx, req)
		m.Observe(info.FullMethod, time.Since(start), err)
		return reply, err
	}
}

// StreamServerInterceptor returns an interceptor that measures each stream
// served, from its opening to its end.
func (m *CSI) StreamServerInterceptor() grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		start := time.Now()
		err := handle(srv, stream)
		m.Observe(info.FullMethod, time.Since(start), err)
		return err
	}
}
