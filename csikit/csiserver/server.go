package csiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"google.golang.org/grpc"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/metrics"
)

const (
	// DefaultStopTimeout is how long calls may go on after the end of Run's
	// context if Config.StopTimeout is zero.
	DefaultStopTimeout = 10 * time.Second

	// maxRequest bounds one request. The specification asks for no more than
	// a few hundred KiB in total (CSI spec v1.13, "Size Limits").
	maxRequest = 16 << 20
)

// Config says where and how to serve. Only Endpoint is required.
type Config struct {
	// Endpoint is unix:///path, the bare absolute path of a unix socket, or
	// tcp://host:port, which has neither authentication nor encryption.
	Endpoint string
	// CallTimeout bounds calls whose caller sets no deadline. Zero: unbounded,
	// as streams always are.
	CallTimeout time.Duration
	// StopTimeout is how long running calls may go on when the server stops,
	// before they are cancelled. Default 10 s.
	StopTimeout time.Duration
	// Metrics measures all calls.
	Metrics *metrics.CSI
	// Interceptors and StreamInterceptors come after those of this package,
	// right around the handlers.
	Interceptors       []grpc.UnaryServerInterceptor
	StreamInterceptors []grpc.StreamServerInterceptor
	// Tracing creates an OpenTelemetry span for each call, by the globally
	// configured tracer provider.
	Tracing bool
	// SocketMode is the mode of the unix socket. Zero: 0777 without the umask.
	SocketMode os.FileMode
	// MaxLogLength cuts logged requests and replies, in bytes. Zero: not cut.
	MaxLogLength int
}

func (cfg Config) withDefaults() Config {
	if cfg.StopTimeout == 0 {
		cfg.StopTimeout = DefaultStopTimeout
	}
	return cfg
}

func (cfg Config) validate() error {
	var errs []error
	if _, err := parseEndpoint(cfg.Endpoint); err != nil {
		errs = append(errs, err)
	}
	if cfg.CallTimeout < 0 {
		errs = append(errs, fmt.Errorf("call timeout %v: must not be negative", cfg.CallTimeout))
	}
	if cfg.StopTimeout < 0 {
		errs = append(errs, fmt.Errorf("stop timeout %v: must not be negative", cfg.StopTimeout))
	}
	if cfg.MaxLogLength < 0 {
		errs = append(errs, fmt.Errorf("maximum log length %d: must not be negative", cfg.MaxLogLength))
	}
	if cfg.SocketMode&^os.ModePerm != 0 {
		errs = append(errs, fmt.Errorf("socket mode %v: must consist of permission bits only", cfg.SocketMode))
	}
	return errors.Join(errs...)
}

// Server is a bound endpoint with its services.
type Server struct {
	cfg      Config
	listener net.Listener
	grpc     *grpc.Server
	// log is set by Run; calls come only after that.
	log atomic.Pointer[klog.Logger]
}

// Listen checks cfg, binds the endpoint and registers the services. Callers
// may connect from then on, and are answered when Run is called.
func Listen(cfg Config, register func(grpc.ServiceRegistrar)) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	listener, err := Bind(cfg.Endpoint, cfg.SocketMode)
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, listener: listener}
	s.grpc = grpc.NewServer(s.options()...)
	register(s.grpc)
	return s, nil
}

// options lists the interceptors, outermost first.
func (s *Server) options() []grpc.ServerOption {
	unary := []grpc.UnaryServerInterceptor{s.prepare}
	stream := []grpc.StreamServerInterceptor{s.prepareStream}
	if m := s.cfg.Metrics; m != nil {
		unary = append(unary, m.UnaryServerInterceptor())
		stream = append(stream, m.StreamServerInterceptor())
	}
	unary = append(append(unary, s.logCall, recoverCall), s.cfg.Interceptors...)
	stream = append(append(stream, s.logStream, recoverStream), s.cfg.StreamInterceptors...)
	opts := []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(unary...),
		grpc.ChainStreamInterceptor(stream...),
		grpc.MaxRecvMsgSize(maxRequest),
	}
	if s.cfg.Tracing {
		opts = append(opts, grpc.StatsHandler(otelgrpc.NewServerHandler()))
	}
	return opts
}

// Addr returns the address that is listened on: the path of the socket, or
// host:port with the port that was chosen.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// ErrStuck is returned by Run when calls do not return although their contexts
// are cancelled. Only the end of the process stops them.
var ErrStuck = errors.New("CSI calls do not end although their contexts have")

// Run serves until ctx ends, which is no error. Then running calls may go on
// for Config.StopTimeout; after that their contexts are cancelled. Calls that
// have not returned after the same time again make Run return ErrStuck. Run
// removes the socket before it returns. Handlers find the logger of ctx in
// their context.
func (s *Server) Run(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	s.log.Store(&logger)
	logger.Info("Serving CSI", logging.KeyEndpoint, s.Addr())
	served := make(chan error, 1)
	go func() { served <- s.grpc.Serve(s.listener) }()
	select {
	case err := <-served:
		return s.serveError(err)
	case <-ctx.Done():
	}
	if err := s.stop(logger); err != nil {
		return err
	}
	if err := <-served; !errors.Is(err, grpc.ErrServerStopped) {
		return s.serveError(err)
	}
	return nil // stopped before it had begun
}

func (s *Server) serveError(err error) error {
	if err != nil {
		return fmt.Errorf("serve CSI on %q: %w", s.Addr(), err)
	}
	return nil
}

// stop stops the server gracefully, and by force after the timeout. GracefulStop
// and Stop wait for handlers without limit, so each has a goroutine; when a
// handler hangs in the kernel, such as in a mount, both goroutines leak with it.
func (s *Server) stop(logger klog.Logger) error {
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		s.grpc.GracefulStop()
	}()
	if endsWithin(stopped, s.cfg.StopTimeout) {
		return nil
	}
	logger.Info("Cutting off CSI calls that are still running", logging.KeyTimeout, s.cfg.StopTimeout)
	cut := make(chan struct{})
	go func() {
		defer close(cut)
		s.grpc.Stop()
	}()
	if !endsWithin(stopped, s.cfg.StopTimeout) {
		return ErrStuck
	}
	<-cut
	return nil
}

// endsWithin waits at most d for done to close, and reports whether it has.
func endsWithin(done <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// Close frees the endpoint of a server that is not to run.
func (s *Server) Close() error {
	s.grpc.Stop()
	return s.listener.Close()
}
