// Package httpserve serves a component's metrics, health, profiles and state
// over HTTP, on one listener.
//
//	/metrics                  if Config.Gatherer is set, at Config.MetricsPath
//	/healthz                  Config.Health, or else the same as /livez
//	/livez, /readyz           checks by name; ?verbose lists them, ?exclude=NAME skips one; also at Config.ReadyPath
//	/healthz/leader-election  if Config.Leader is set
//	/debug/pprof/             if Config.Pprof is set
//	/debug/state              if Config.State is set, as JSON; to other hosts only if Config.Pprof is set
//
// It has neither TLS nor authentication. Do not serve anything with it that
// must stay hidden from other pods of the cluster.
package httpserve

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
)

const (
	// DefaultMetricsPath is where metrics are if Config.MetricsPath is empty.
	DefaultMetricsPath = "/metrics"
	// DefaultCheckTimeout bounds each check if Config.CheckTimeout is zero.
	DefaultCheckTimeout = 10 * time.Second

	headerTimeout   = 10 * time.Second
	readTimeout     = 30 * time.Second
	writeTimeout    = 60 * time.Second
	idleTimeout     = 2 * time.Minute
	shutdownTimeout = 5 * time.Second
	maxHeaderBytes  = 64 << 10
)

// Check returns why something is not healthy, or nil.
type Check func(context.Context) error

// Config says where to listen and what to serve.
type Config struct {
	// Address is host:port. An empty host listens on all addresses, of IPv4
	// and IPv6. Port 0 chooses a free one (see Server.Addr).
	Address string
	// MetricsPath is the path of the metrics. Default /metrics.
	MetricsPath string
	// Gatherer provides the metrics.
	Gatherer prometheus.Gatherer
	// Live and Ready are the checks of /livez and /readyz by name.
	Live, Ready map[string]func(context.Context) error
	// ReadyPath is another path of /readyz, for probes in manifests of a component that is replaced. Empty: none.
	ReadyPath string
	// Leader reports whether leader election works.
	Leader func() error
	// Health answers /healthz.
	Health func(context.Context) error
	// CheckTimeout bounds each check. Default 10 s.
	CheckTimeout time.Duration
	// Pprof serves profiles of the process, and State to other hosts.
	Pprof bool
	// State returns what the component is doing, to be encoded as JSON. Only
	// this host is served, unless Pprof is set.
	State func() any
	// Logger logs failing checks and errors of connections.
	Logger klog.Logger
}

func (cfg Config) withDefaults() Config {
	if cfg.MetricsPath == "" {
		cfg.MetricsPath = DefaultMetricsPath
	}
	if cfg.CheckTimeout == 0 {
		cfg.CheckTimeout = DefaultCheckTimeout
	}
	return cfg
}

func (cfg Config) validate() error {
	var errs []error
	if _, _, err := net.SplitHostPort(cfg.Address); err != nil {
		errs = append(errs, fmt.Errorf("HTTP address %q: must be host:port or :port: %w", cfg.Address, err))
	}
	if err := checkMetricsPath(cfg.MetricsPath); err != nil {
		errs = append(errs, err)
	}
	if cfg.CheckTimeout < 0 {
		errs = append(errs, fmt.Errorf("check timeout %v: must not be negative", cfg.CheckTimeout))
	}
	return errors.Join(errs...)
}

func checkMetricsPath(metrics string) error {
	switch {
	case !strings.HasPrefix(metrics, "/"):
		return fmt.Errorf("metrics path %q: must begin with /", metrics)
	case strings.ContainsAny(metrics, " {}?#"):
		return fmt.Errorf("metrics path %q: must not contain spaces, braces, ? or #", metrics)
	case metrics == "/" || isReserved(metrics):
		return fmt.Errorf("metrics path %q: is used for something else", metrics)
	case path.Clean(metrics) != strings.TrimSuffix(metrics, "/"):
		return fmt.Errorf("metrics path %q: must not contain empty parts, . or .., no request would match", metrics)
	}
	return nil
}

func isReserved(path string) bool {
	switch path {
	case pathHealthz, pathLivez, pathReadyz, pathLeader, pathState:
		return true
	}
	return strings.HasPrefix(path, pathPprof)
}

// Server is a bound listener and what it serves.
type Server struct {
	listener net.Listener
	http     *http.Server
	log      klog.Logger
}

// Listen checks cfg and binds the address, so that a bad one is an error at
// once. The server answers when Run is called.
func Listen(cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(context.Background(), "tcp", cfg.Address)
	if err != nil {
		return nil, fmt.Errorf("listen for HTTP on %q: %w", cfg.Address, err)
	}
	return &Server{
		listener: listener,
		log:      cfg.Logger,
		http: &http.Server{
			Handler:           newHandler(cfg),
			ReadHeaderTimeout: headerTimeout,
			ReadTimeout:       readTimeout,
			WriteTimeout:      writeTimeout,
			IdleTimeout:       idleTimeout,
			MaxHeaderBytes:    maxHeaderBytes,
			ErrorLog:          log.New(errorLog{cfg.Logger}, "", 0),
		},
	}, nil
}

// Addr returns the address that is listened on, with the port that was chosen.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Run serves until ctx ends. Then it takes no new connections and gives the
// requests that are running five seconds to finish.
func (s *Server) Run(ctx context.Context) error {
	s.log.Info("Serving HTTP", logging.KeyAddress, s.Addr())
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve HTTP on %q: %w", s.Addr(), err)
		}
		return nil
	})
	group.Go(func() error {
		<-groupCtx.Done()
		return s.shutdown(context.WithoutCancel(ctx))
	})
	return group.Wait()
}

func (s *Server) shutdown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, shutdownTimeout)
	defer cancel()
	if err := s.http.Shutdown(ctx); err != nil {
		s.log.Info("Closing HTTP connections that are still busy", logging.KeyAddress, s.Addr())
		return s.http.Close()
	}
	return nil
}

// Close frees the address of a server that is not to run.
func (s *Server) Close() error { return s.listener.Close() }
