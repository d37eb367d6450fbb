package service

import (
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/csikit/metrics"
)

// Operations, in metrics and logs.
const (
	OperationAllocated = "MetadataAllocated"
	OperationDelta     = "MetadataDelta"
)

// Metrics measures the calls of clients and those to the driver. No label has the name of an object, of which there is no end.
type Metrics struct {
	driver   string
	calls    *prometheus.HistogramVec
	toDriver *metrics.CSI
	running  prometheus.Gauge
	blocks   *prometheus.CounterVec
	bytes    *prometheus.CounterVec
}

// NewMetrics registers the metrics of the service for a driver.
func NewMetrics(reg prometheus.Registerer, driver string) *Metrics {
	m := &Metrics{
		driver: driver,
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "snapshot_metadata_controller_operations_seconds", Help: "Duration of the calls of clients, by method and gRPC status code.",
			Buckets: metrics.Buckets(),
		}, []string{metrics.LabelDriver, metrics.LabelMethod, metrics.LabelCode}),
		toDriver: metrics.NewSidecarCSI(reg),
		running: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "csi_snapshot_metadata_streams", Help: "Number of streams that are being passed on from the driver to clients.",
		}),
		blocks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "csi_snapshot_metadata_blocks_total", Help: "Number of blocks that were reported to clients, by method.",
		}, []string{metrics.LabelMethod}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "csi_snapshot_metadata_block_bytes_total", Help: "Size of the blocks that were reported to clients, by method.",
		}, []string{metrics.LabelMethod}),
	}
	m.toDriver.SetDriverName(driver)
	reg.MustRegister(m.calls, m.running, m.blocks, m.bytes)
	return m
}

// answered measures the call of a client, of any operation.
func (m *Metrics) answered(operation string, took time.Duration, err error) {
	m.calls.WithLabelValues(m.driver, operation, status.Code(err).String()).Observe(took.Seconds())
}

// began measures a stream of the driver, which done ends.
func (m *Metrics) began(operation string) (done func(error)) {
	start, method := time.Now(), csi.SnapshotMetadata_GetMetadataAllocated_FullMethodName
	if operation == OperationDelta {
		method = csi.SnapshotMetadata_GetMetadataDelta_FullMethodName
	}
	m.running.Inc()
	return func(err error) {
		m.running.Dec()
		m.toDriver.Observe(method, time.Since(start), err)
	}
}

func (m *Metrics) sent(operation string, b batch) {
	var bytes int64
	for _, block := range b.blocks {
		bytes += block.GetSizeBytes()
	}
	m.blocks.WithLabelValues(operation).Add(float64(len(b.blocks)))
	m.bytes.WithLabelValues(operation).Add(float64(bytes))
}
