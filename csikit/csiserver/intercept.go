package csiserver

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/redact"
)

const (
	// levelFailed is the verbosity that logs calls that end with an error that a caller can do something about. Others are always logged.
	levelFailed = 2
	// levelBodies is the verbosity that logs requests and replies.
	levelBodies = 5
)

// withLogger adds the logger to the context of a call.
func (s *Server) withLogger(ctx context.Context, method string) context.Context {
	if logger := s.log.Load(); logger != nil {
		return klog.NewContext(ctx, logger.WithValues(logging.KeyMethod, method))
	}
	return ctx
}

// prepare adds the logger and, if the caller has set none, a deadline.
func (s *Server) prepare(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	ctx = s.withLogger(ctx, info.FullMethod)
	if _, has := ctx.Deadline(); !has && s.cfg.CallTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.cfg.CallTimeout)
		defer cancel()
	}
	return handle(ctx, req)
}

// prepareStream adds the logger. A stream lasts as long as its caller wants.
func (s *Server) prepareStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	return handle(srv, contextStream{ServerStream: stream, ctx: s.withLogger(stream.Context(), info.FullMethod)})
}

// contextStream is a stream with another context.
type contextStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // a stream is how gRPC hands the context on
}

// Context returns the context with the logger.
func (s contextStream) Context() context.Context { return s.ctx }

// logCall logs bodies at V(5) and failures at V(2). Below that verbosity it
// only reads the logger from the context.
func (s *Server) logCall(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	logger := klog.FromContext(ctx)
	bodies := logger.V(levelBodies)
	if bodies.Enabled() {
		bodies.Info("CSI request", logging.KeyRequest, redact.Limited(req, s.cfg.MaxLogLength))
	}
	start := time.Now()
	reply, err := handle(ctx, req)
	switch {
	case err != nil:
		logFailure(objectOf(logger, req), start, err)
	case bodies.Enabled():
		bodies.Info("CSI reply", logging.KeyDuration, time.Since(start), logging.KeyResponse, redact.Limited(reply, s.cfg.MaxLogLength))
	}
	return reply, err
}

func (s *Server) logStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	start := time.Now()
	err := handle(srv, stream)
	if err != nil {
		logFailure(klog.FromContext(stream.Context()), start, err)
	}
	return err
}

// objectOf adds to a logger what a request is about: the id of a volume or snapshot, or the name of a new one.
func objectOf(logger klog.Logger, req any) klog.Logger {
	if r, ok := req.(interface{ GetVolumeId() string }); ok {
		return logger.WithValues(logging.KeyVolumeID, r.GetVolumeId())
	}
	if r, ok := req.(interface{ GetName() string }); ok {
		return logger.WithValues(logging.KeyName, r.GetName())
	}
	if r, ok := req.(interface{ GetSnapshotId() string }); ok {
		return logger.WithValues(logging.KeySnapshotID, r.GetSnapshotId())
	}
	return logger
}

// levelOf is the verbosity at which a failure is logged: a fault of the driver or of its storage system always is.
func levelOf(code codes.Code) int {
	switch code {
	case codes.Internal, codes.Unknown, codes.DataLoss:
		return 0
	default:
		return levelFailed
	}
}

func logFailure(logger klog.Logger, start time.Time, err error) {
	if logger = logger.V(levelOf(status.Code(err))); logger.Enabled() {
		logger.Info("CSI call failed", logging.KeyDuration, time.Since(start),
			logging.KeyCode, status.Code(err).String(), logging.KeyReason, status.Convert(err).Message())
	}
}

func recoverCall(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (reply any, err error) {
	defer func() {
		if p := recover(); p != nil {
			reply, err = nil, panicked(ctx, p)
		}
	}()
	return handle(ctx, req)
}

func recoverStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = panicked(stream.Context(), p)
		}
	}()
	return handle(srv, stream)
}

// panicked logs a panic with its stack and returns the error for the caller,
// which has no details of the panic.
func panicked(ctx context.Context, p any) error {
	err := fmt.Errorf("panic: %v", p)
	klog.FromContext(ctx).Error(err, "CSI call panicked", logging.KeyStack, string(debug.Stack()))
	return status.Error(codes.Internal, "the driver panicked while it handled the call; its log has the details")
}
