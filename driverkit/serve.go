package driverkit

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
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
	command.Options[O]
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
// in one process. Errors: invalid options, a state directory that another process uses (state.ErrLocked), an endpoint that cannot be listened on.
func Serve(ctx context.Context, o Options, b Backend) error {
	if err := o.Validate(); err != nil {
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
	d := &driver{kit: &kit{Options: o, backend: b}, registry: procmetrics.NewRegistry()}
	if err := d.open(ctx); err != nil {
		return errors.Join(err, d.close(ctx))
	}
	return errors.Join(d.serve(ctx), d.close(ctx))
}

// driver is one running instance.
type driver struct {
	*kit

	services Services
	journal  *journal
	registry *prometheus.Registry
}

// open makes the services. The driver is to be closed after an error, too.
func (d *driver) open(ctx context.Context) (err error) {
	var own *node
	if d.node() {
		if err := d.checkNode(); err != nil {
			return err
		}
		if d.lock, err = state.Acquire(filepath.Join(d.StateDir, "lock"), "node "+d.NodeID); err != nil {
			return err
		}
		if d.journal, err = openJournal(ctx, d.StateDir); err != nil {
			return fmt.Errorf("open the journal in %s: %w", d.StateDir, err)
		}
		own = &node{kit: d.kit, journal: d.journal}
		d.services.Node = own
	}
	if d.controller() {
		c := &controller{kit: d.kit}
		d.services.Controller = c
		if groups := optional[GroupSnapshotter](d.kit); groups != nil {
			d.services.GroupController = &group{controller: c, backend: groups}
		}
		if blocks := optional[BlockMetadataReporter](d.kit); blocks != nil {
			d.services.SnapshotMetadata = &metadata{backend: blocks}
		}
	}
	d.services.Identity = &identity{kit: d.kit}
	if d.Services != nil {
		d.Services(&d.services)
	}
	if d.Opened != nil {
		if err := d.Opened(ctx); err != nil {
			return err
		}
	}
	if own != nil {
		own.collectInline(ctx)
	}
	return nil
}

// close waits for work in the background, and releases the state directory. Where work goes on, the end of the process releases it: a check must not have company from the next one.
func (d *driver) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.StopTimeout)
	defer cancel()
	if err := d.background.Close(ctx); err != nil {
		return fmt.Errorf("stop while work goes on, which the next start finds unfinished: %w", err)
	}
	if d.lock == nil {
		return nil
	}
	return d.lock.Release()
}

// serve runs the servers until ctx ends or one of them fails.
func (d *driver) serve(ctx context.Context) error {
	measured := metrics.NewPluginCSI(d.registry)
	measured.SetDriverName(d.DriverName)
	server, err := csiserver.Listen(csiserver.Config{
		Endpoint:     d.Endpoint,
		SocketMode:   socketMode,
		CallTimeout:  d.CallTimeout,
		StopTimeout:  d.StopTimeout,
		Metrics:      measured,
		Tracing:      d.Tracing,
		Interceptors: d.Interceptors,
	}, d.register)
	if err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	if d.HTTP.Address() != "" {
		web, err := d.listenHTTP(ctx)
		if err != nil {
			return errors.Join(err, server.Close())
		}
		group.Go(func() error { return web.Run(groupCtx) })
	}
	group.Go(func() error { return server.Run(groupCtx) })
	return group.Wait()
}

func (d *driver) register(r grpc.ServiceRegistrar) {
	if s := d.services.Identity; s != nil {
		csi.RegisterIdentityServer(r, s)
	}
	if s := d.services.Controller; s != nil {
		csi.RegisterControllerServer(r, s)
	}
	if s := d.services.GroupController; s != nil {
		csi.RegisterGroupControllerServer(r, s)
	}
	if s := d.services.SnapshotMetadata; s != nil {
		csi.RegisterSnapshotMetadataServer(r, s)
	}
	if s := d.services.Node; s != nil {
		csi.RegisterNodeServer(r, s)
	}
	if d.Register != nil {
		d.Register(r)
	}
}

func (d *driver) listenHTTP(ctx context.Context) (*httpserve.Server, error) {
	return httpserve.Listen(httpserve.Config{
		Address:     d.HTTP.Address(),
		MetricsPath: d.HTTP.MetricsPath,
		Gatherer:    d.registry,
		Health:      d.start,
		Live:        map[string]func(context.Context) error{"process": func(context.Context) error { return nil }},
		Ready:       map[string]func(context.Context) error{"backend": d.probe},
		Pprof:       d.HTTP.Pprof,
		State:       d.state,
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

func (d *driver) state() any {
	shown := shownState{Mode: d.Mode}
	if d.journal != nil {
		shown.Volumes = d.journal.all()
	}
	if d.State != nil {
		shown.Driver = d.State()
	}
	return shown
}
