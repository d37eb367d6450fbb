package csiclient

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/redact"
)

// levelBodies is the verbosity that logs requests and replies.
const levelBodies = 5

// caller passes unary calls through interceptors to any connection. gRPC's own
// chaining works for a grpc.ClientConn only; a driver in the same process must
// be measured and logged alike.
type caller struct {
	base   grpc.ClientConnInterface
	invoke grpc.UnaryInvoker
	conn   *grpc.ClientConn
}

func newCaller(base grpc.ClientConnInterface, conn *grpc.ClientConn, chain []grpc.UnaryClientInterceptor) *caller {
	invoke := func(ctx context.Context, method string, req, reply any, _ *grpc.ClientConn, opts ...grpc.CallOption) error {
		return base.Invoke(ctx, method, req, reply, opts...)
	}
	for i := len(chain) - 1; i >= 0; i-- {
		invoke = around(chain[i], invoke)
	}
	return &caller{base: base, invoke: invoke, conn: conn}
}

func around(outer grpc.UnaryClientInterceptor, inner grpc.UnaryInvoker) grpc.UnaryInvoker {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, opts ...grpc.CallOption) error {
		return outer(ctx, method, req, reply, cc, inner, opts...)
	}
}

// Invoke makes a unary call.
func (c *caller) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return c.invoke(ctx, method, args, reply, c.conn, opts...)
}

// NewStream opens a stream, past all interceptors.
func (c *caller) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return c.base.NewStream(ctx, desc, method, opts...)
}

// logCalls logs each call at V(5), redacted and cut to limit bytes. Below that
// level a call costs a look at the context and nothing else.
func logCalls(limit int) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		logger := klog.FromContext(ctx).V(levelBodies)
		if !logger.Enabled() {
			return call(ctx, method, req, reply, cc, opts...)
		}
		logger.Info("CSI call", logging.KeyMethod, method, logging.KeyRequest, redact.Limited(req, limit))
		start := time.Now()
		err := call(ctx, method, req, reply, cc, opts...)
		took := time.Since(start)
		if err != nil {
			logger.Info("CSI call ended with an error", logging.KeyMethod, method, logging.KeyDuration, took,
				logging.KeyCode, status.Code(err).String(), logging.KeyReason, err.Error())
			return err
		}
		logger.Info("CSI call ended", logging.KeyMethod, method, logging.KeyDuration, took,
			logging.KeyResponse, redact.Limited(reply, limit))
		return nil
	}
}
