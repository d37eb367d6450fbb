package service

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/snapshotmetadata/api"
)

const (
	// maxRequest is the largest request, in bytes: a token and some names.
	maxRequest = 128 << 10
	// handshakeTimeout is how long a connection may take until it can be used.
	handshakeTimeout = 20 * time.Second
	// pingAfter and pingTimeout find out that a client is gone without a word.
	pingAfter, pingTimeout = 30 * time.Second, 20 * time.Second
	// minPing is how often a client may ping.
	minPing = 10 * time.Second
	// requestTimeout is how long the request of a stream may take to arrive, unless Config.RequestTimeout says so.
	requestTimeout = 30 * time.Second
	// readyInterval is how often the health service finds out whether the driver can be called.
	readyInterval = 5 * time.Second
	// stopTimeout is how long the last answers may take at the end.
	stopTimeout = 5 * time.Second
)

var (
	errTooLong   = errors.New("the stream lasts longer than --max-streaming-duration-min allows; continue it with starting_offset")
	errNoRequest = errors.New("the request has not arrived in time")
	errStopping  = errors.New("the service is stopping; continue the stream with starting_offset")
)

// Server serves a Service by TLS, with gRPC's health service.
type Server struct {
	service  *Service
	listener net.Listener
	grpc     *grpc.Server
	health   *health.Server
	log      klog.Logger
	stopping chan struct{}
	handlers sync.WaitGroup
}

// Listen binds an address, host:port.
func Listen(ctx context.Context, address string, config *tls.Config, service *Service) (*Server, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for gRPC on %q: %w", address, err)
	}
	s := &Server{service: service, listener: listener, health: health.NewServer(), log: klog.FromContext(ctx), stopping: make(chan struct{})}
	s.grpc = grpc.NewServer(
		grpc.Creds(credentials.NewTLS(config)),
		grpc.MaxRecvMsgSize(maxRequest),
		grpc.MaxConcurrentStreams(streamsPerConnection(service.cfg.MaxStreams)),
		grpc.InTapHandle(s.boundUnary),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.StreamInterceptor(s.supervise),
	)
	api.RegisterSnapshotMetadataServer(s.grpc, service)
	healthv1.RegisterHealthServer(s.grpc, s.health)
	s.setHealth(healthv1.HealthCheckResponse_NOT_SERVING)
	return s, nil
}

// setHealth has the health service say whether calls are served, for the service and for the whole process.
func (s *Server) setHealth(is healthv1.HealthCheckResponse_ServingStatus) {
	s.health.SetServingStatus("", is)
	s.health.SetServingStatus(api.SnapshotMetadata_ServiceDesc.ServiceName, is)
}

// followDriver keeps the health service true to the driver until ctx ends.
func (s *Server) followDriver(ctx context.Context) {
	ticker := time.NewTicker(readyInterval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		is := healthv1.HealthCheckResponse_SERVING
		if err := s.ready(ctx); err != nil {
			is = healthv1.HealthCheckResponse_NOT_SERVING
		}
		s.setHealth(is)
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// ready returns why the driver cannot be called, or nil.
func (s *Server) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.service.cfg.KubeTimeout)
	defer cancel()
	return s.service.cfg.Ready(ctx)
}

// streamsPerConnection is how many streams a connection may have: those that are served at a time, and as many whose users are asked for.
func streamsPerConnection(served int) uint32 { return uint32(min(max(served, 1), 1<<20) + maxReviews) } //nolint:gosec // a small number

// boundUnary sets a deadline for the unary calls, which are those of the health service: gRPC waits for their requests before any interceptor runs.
func (s *Server) boundUnary(ctx context.Context, info *tap.Info) (context.Context, error) {
	if info.FullMethodName != healthv1.Health_Check_FullMethodName && info.FullMethodName != healthv1.Health_List_FullMethodName {
		return ctx, nil
	}
	bounded, cancel := context.WithTimeout(ctx, cmp.Or(s.service.cfg.RequestTimeout, requestTimeout))
	context.AfterFunc(ctx, cancel) // gRPC ends ctx with the call
	return bounded, nil
}

// Addr returns the address that is listened on, with the port that was chosen.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Run serves until ctx ends. Then no stream is accepted, and those that run may go on for Config.Drain, as not each client can continue one. The rest end with
// UNAVAILABLE.
func (s *Server) Run(ctx context.Context) error {
	s.log.Info("Serving snapshot metadata", logging.KeyAddress, s.Addr())
	served := make(chan error, 1)
	go func() { served <- s.grpc.Serve(s.listener) }()
	following, stop := context.WithCancel(ctx)
	defer stop()
	go s.followDriver(following)
	var err error
	select {
	case err = <-served:
		err = fmt.Errorf("serve gRPC on %q: %w", s.Addr(), err)
	case <-ctx.Done():
	}
	drain := s.service.cfg.Drain
	if err != nil {
		drain = 0
	}
	s.health.Shutdown()
	defer time.AfterFunc(drain, func() { close(s.stopping) }).Stop()
	defer time.AfterFunc(drain+stopTimeout, s.grpc.Stop).Stop()
	s.grpc.GracefulStop()
	s.handlers.Wait()
	return err
}

// supervise runs the handler of a stream, and answers for it if it takes too long: a handler may hang in sending to a client that does not
// read. What it still does then ends with its context.
func (s *Server) supervise(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	operation := map[string]string{
		api.SnapshotMetadata_GetMetadataAllocated_FullMethodName: OperationAllocated, api.SnapshotMetadata_GetMetadataDelta_FullMethodName: OperationDelta,
	}[info.FullMethod]
	ctx, cancel := context.WithTimeoutCause(stream.Context(), s.service.cfg.MaxStreaming, errTooLong)
	defer cancel()
	ctx, refuse := context.WithCancelCause(ctx)
	defer refuse(nil)
	arrival := time.AfterFunc(cmp.Or(s.service.cfg.RequestTimeout, requestTimeout), func() { refuse(errNoRequest) })
	defer arrival.Stop()
	stream = contextStream{ServerStream: stream, ctx: ctx, arrived: func() { arrival.Stop() }}
	start, log := time.Now(), s.log.WithValues(logging.KeyMethod, cmp.Or(operation, info.FullMethod))
	handled := make(chan error, 1)
	s.handlers.Go(func() { handled <- protect(log, func() error { return handle(srv, stream) }) })
	err := s.wait(ctx, handled)
	if operation == "" { // the health service
		return err
	}
	s.service.cfg.Metrics.answered(operation, time.Since(start), err)
	if err != nil {
		log.V(2).Info("Call failed", logging.KeyDuration, time.Since(start), logging.KeyCode, status.Code(err).String(), logging.KeyReason, status.Convert(err).Message())
	}
	return err
}

// wait returns the error for the client.
func (s *Server) wait(ctx context.Context, handled <-chan error) error {
	select {
	case err := <-handled:
		if err == nil || ctx.Err() == nil {
			return err
		}
	case <-ctx.Done():
	case <-s.stopping:
		return status.Error(codes.Unavailable, errStopping.Error())
	}
	for _, cause := range []error{errTooLong, errNoRequest} {
		if errors.Is(context.Cause(ctx), cause) {
			return status.Error(codes.DeadlineExceeded, cause.Error())
		}
	}
	return status.FromContextError(ctx.Err()).Err()
}

// protect turns a panic into an error.
func protect(log klog.Logger, do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			log.Error(fmt.Errorf("panic: %v", p), "Call panicked", logging.KeyStack, string(debug.Stack()))
			err = status.Error(codes.Internal, "csi-snapshot-metadata panicked while it handled the call; its log has the details")
		}
	}()
	return do()
}

// contextStream is a stream with another context.
type contextStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // a stream is how gRPC hands the context on
	// arrived is called when the request is there.
	arrived func()
}

// RecvMsg implements grpc.ServerStream.
func (s contextStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	s.arrived()
	return err
}

// Context returns the context with the deadline.
func (s contextStream) Context() context.Context { return s.ctx }
