package driverkit

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/command"
	"github.com/longshore-csi/longshore/csikit/csiserver"
	"github.com/longshore-csi/longshore/csikit/httpserve"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/metrics"
	"github.com/longshore-csi/longshore/csikit/procmetrics"
	"github.com/longshore-csi/longshore/csikit/tracing"
	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/driverkit/state"
)

// socketMode lets sidecars that do not run as root use the socket, by the group of its directory: the fsGroup of a pod.
const socketMode = 0o660

// Flags is what the options of a driver can do. A struct that embeds Options has it, and adds its own.
type Flags[O any] interface {
	*O
	// AddFlags binds the flags to the fields.
	AddFlags(fs *flag.FlagSet)
	// Validate reports everything that is wrong.
	Validate() error
}

// Main runs a driver as the process that it is in: flags from the command line, --version and the flags of logging among them, logs on standard error,
// traces if the environment asks for them (OTEL_EXPORTER_OTLP_ENDPOINT), until SIGINT or SIGTERM. It returns the exit code: 0, 1 for an error, 2 for a
// wrong command line.
//
//	func main() { os.Exit(driverkit.Main("foo-csi", newOptions, run)) }
func Main[O any, P Flags[O]](name string, newOptions func() O, run func(ctx context.Context, o O) error) int {
	return command.New[O, P](name, newOptions, func(ctx context.Context, o O) error {
		return tracing.Run(ctx, name, func(ctx context.Context, on bool) error {
			return run(context.WithValue(ctx, tracingKey{}, on), o)
		})
	}).Main()
}

// tracingKey is the key in a context under which Main says whether a tracer provider is installed.
type tracingKey struct{}

// Serve serves a driver until ctx ends, which is no error: running calls may end before it returns. The logger of ctx is used. Several instances can run
// in one process. Errors: invalid options, a driver that lacks a part that another one needs, a state directory that another process uses (state.ErrLocked), an endpoint that cannot be listened on.
func Serve(ctx context.Context, o Options, d Driver) error {
	if err := errors.Join(o.Validate(), d.check(&o)); err != nil {
		return err
	}
	o.StateDir = filepath.Clean(o.StateDir) // Paths of the CO are compared with it.
	if o.node() {
		var err error
		if o.StateDir, err = state.Claim(o.StateDir, o.DriverName); err != nil {
			return err
		}
	}
	if on, _ := ctx.Value(tracingKey{}).(bool); on {
		o.Tracing = true
	}
	if o.Mounter == nil {
		o.Mounter = mount.Kernel{}
	}
	if o.Filesystems == nil {
		o.Filesystems = filesystem.NewKernel()
	}
	logger := klog.FromContext(ctx).WithValues(logging.KeyDriver, o.DriverName)
	if o.node() {
		logger = logger.WithValues(logging.KeyNodeID, o.NodeID)
	}
	ctx = klog.NewContext(ctx, logger)
	if o.Registry == nil {
		o.Registry = procmetrics.NewRegistry()
	}
	s := &server{kit: &kit{Options: o, driver: d}}
	if err := s.open(ctx); err != nil {
		return errors.Join(err, s.close(ctx))
	}
	return errors.Join(s.serve(ctx), s.close(ctx))
}

// server is one running instance. A service that the Mode excludes is nil.
type server struct {
	*kit

	identity   *identity
	controller *controller
	group      *group
	metadata   *metadata
	node       *node
}

// open makes the services. The server is to be closed after an error, too.
func (s *server) open(ctx context.Context) error {
	s.identity = &identity{kit: s.kit}
	if s.Options.node() {
		if err := s.openNode(ctx); err != nil {
			return err
		}
	}
	if s.Options.controller() && s.hasController() {
		s.openController()
	}
	if s.ControllerServices != nil {
		s.ControllerServices(s.registerController)
	}
	if s.Opened != nil {
		if err := s.Opened(ctx); err != nil {
			return err
		}
	}
	if s.node != nil {
		s.node.collectInline(ctx)
	}
	return nil
}

func (s *server) openNode(ctx context.Context) (err error) {
	if err := s.checkNode(); err != nil {
		return err
	}
	if s.lock, err = state.Acquire(filepath.Join(s.StateDir, "lock"), "node "+s.NodeID); err != nil {
		return err
	}
	s.node = &node{kit: s.kit}
	if s.node.journal, err = openJournal(ctx, s.StateDir); err != nil {
		return fmt.Errorf("open the journal in %s: %w", s.StateDir, err)
	}
	return nil
}

func (s *server) openController() {
	s.controller = &controller{kit: s.kit}
	if s.driver.GroupSnapshotter != nil {
		s.group = &group{controller: s.controller}
	}
	if s.driver.Blocks != nil {
		s.metadata = &metadata{blocks: s.driver.Blocks}
	}
}

// close waits for work in the background, and releases the state directory. Where work goes on, the end of the process releases it: a check must not have company from the next one.
func (s *server) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.StopTimeout)
	defer cancel()
	if err := s.background.Close(ctx); err != nil {
		return fmt.Errorf("stop while work goes on, which the next start finds unfinished: %w", err)
	}
	if s.lock == nil {
		return nil
	}
	return s.lock.Release()
}

// serve runs the servers until ctx ends or one of them fails.
func (s *server) serve(ctx context.Context) error {
	klog.FromContext(ctx).Info("Announcing what the driver can do", logging.KeyCapabilities, s.announced(ctx))
	measured := metrics.NewPluginCSI(s.Registry)
	measured.SetDriverName(s.DriverName)
	listening, err := csiserver.Listen(csiserver.Config{
		Endpoint:     s.Endpoint,
		SocketMode:   socketMode,
		CallTimeout:  s.CallTimeout,
		StopTimeout:  s.StopTimeout,
		Metrics:      measured,
		Tracing:      s.Tracing,
		Interceptors: s.Interceptors,
	}, s.register)
	if err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	if s.HTTP.Endpoint != "" {
		web, err := s.listenHTTP(ctx)
		if err != nil {
			return errors.Join(err, listening.Close())
		}
		group.Go(func() error { return web.Run(groupCtx) })
	}
	group.Go(func() error { return listening.Run(groupCtx) })
	return group.Wait()
}

func (s *server) register(r grpc.ServiceRegistrar) {
	csi.RegisterIdentityServer(r, s.identity)
	s.registerController(r)
	if s.metadata != nil {
		csi.RegisterSnapshotMetadataServer(r, s.metadata)
	}
	if s.node != nil {
		csi.RegisterNodeServer(r, s.node)
	}
	if s.Register != nil {
		s.Register(r)
	}
}

func (s *server) registerController(r grpc.ServiceRegistrar) {
	if s.controller != nil {
		csi.RegisterControllerServer(r, s.controller)
	}
	if s.group != nil {
		csi.RegisterGroupControllerServer(r, s.group)
	}
}

// announced are the capabilities of the services, as CSI names them.
func (s *server) announced(ctx context.Context) (names []string) {
	plugin, _ := s.identity.GetPluginCapabilities(ctx, nil) // none of these fails
	for _, c := range plugin.GetCapabilities() {
		if e := c.GetVolumeExpansion(); e != nil {
			names = append(names, e.GetType().String()+"_EXPANSION")
		} else {
			names = append(names, c.GetService().GetType().String())
		}
	}
	if s.controller != nil {
		of, _ := s.controller.ControllerGetCapabilities(ctx, nil)
		for _, c := range of.GetCapabilities() {
			names = append(names, "controller:"+c.GetRpc().GetType().String())
		}
	}
	if s.node != nil {
		of, _ := s.node.NodeGetCapabilities(ctx, nil)
		for _, c := range of.GetCapabilities() {
			names = append(names, "node:"+c.GetRpc().GetType().String())
		}
	}
	return names
}

func (s *server) listenHTTP(ctx context.Context) (*httpserve.Server, error) {
	return httpserve.Listen(httpserve.Config{
		Address:     s.HTTP.Endpoint,
		MetricsPath: s.HTTP.MetricsPath,
		Gatherer:    s.Registry,
		Health:      s.start,
		Live:        map[string]func(context.Context) error{"process": func(context.Context) error { return nil }},
		Ready:       map[string]func(context.Context) error{"backend": s.probe},
		Pprof:       s.HTTP.Pprof,
		State:       s.state,
		Logger:      klog.FromContext(ctx),
	})
}

// shownState is what /debug/state shows.
type shownState struct {
	Mode Mode `json:"mode"`
	// Volumes is the node's journal.
	Volumes []*record `json:"volumes,omitempty"`
	// Driver is what Options.State returns.
	Driver any `json:"driver,omitempty"`
}

func (s *server) state() any {
	shown := shownState{Mode: s.Mode}
	if s.node != nil {
		shown.Volumes = s.node.journal.all()
	}
	if s.State != nil {
		shown.Driver = s.State()
	}
	return shown
}
