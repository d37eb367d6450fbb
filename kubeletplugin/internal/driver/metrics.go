package driver

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	csimetrics "github.com/longshore-csi/longshore/csikit/metrics"
)

// operationsName is the kubelet's histogram of calls to CSI drivers.
const operationsName = "csi_operations_seconds"

// operations measures calls to all drivers of a node in one histogram.
type operations struct{ calls *prometheus.HistogramVec }

func newOperations(reg prometheus.Registerer) *operations {
	vec := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    operationsName,
		Help:    "Time that calls to the CSI drivers of this node took, by driver, method and gRPC status code.",
		Buckets: csimetrics.Buckets(),
		// As in a kubelet. Volumes of in-tree plugins are not supported.
		ConstLabels: prometheus.Labels{csimetrics.LabelMigrated: "false"},
	}, []string{csimetrics.LabelDriver, csimetrics.LabelMethod, csimetrics.LabelCode})
	if reg == nil {
		return &operations{calls: vec}
	}
	var taken prometheus.AlreadyRegisteredError
	if err := reg.Register(vec); errors.As(err, &taken) {
		if shared, ok := taken.ExistingCollector.(*prometheus.HistogramVec); ok {
			vec = shared
		}
	}
	return &operations{calls: vec}
}

// interceptor measures the calls to one driver, and calls answered after each; nil for none.
func (o *operations) interceptor(driver string, answered func(driver, method string, err error)) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		start := time.Now()
		err := call(ctx, method, req, reply, cc, opts...)
		o.calls.WithLabelValues(driver, method, codeLabel(err)).Observe(time.Since(start).Seconds())
		if answered != nil {
			answered(driver, method, err)
		}
		return err
	}
}

func codeLabel(err error) string {
	st, ok := status.FromError(err)
	if !ok {
		return csimetrics.NotGRPC
	}
	return st.Code().String()
}
