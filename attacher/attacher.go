package attacher

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/attacher/internal/controller"
	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/events"
	"github.com/longshore-csi/longshore/csikit/httpserve"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/kubemetrics"
	"github.com/longshore-csi/longshore/csikit/leader"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/metrics"
	"github.com/longshore-csi/longshore/csikit/version"
)

// rereadInterval is how often the capabilities of a driver that has lost the one to attach are read again.
const rereadInterval = 5 * time.Second

// name is the name of the component for the API server and in events.
const name = "csi-attacher"

// errDriverChanged: another driver answers at the same socket.
var errDriverChanged = errors.New("another driver has taken the socket")

// Run attaches and detaches the volumes of the driver behind o.CSI until ctx ends, which is no
// error. It waits for the driver, then, if o.LeaderElection asks for it, for the Lease. Operations
// that have begun when ctx ends are finished first, within a limit.
//
// It returns an error for options that are not valid, an address that cannot be listened on, a missing
// kubeconfig, and csiclient.ErrConnectionLost if o.ExitOnConnectionLoss is set. An instance that loses the Lease stops what it does, and
// waits for it again. The logger is taken from ctx.
func Run(ctx context.Context, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	for _, warning := range o.Warnings() {
		klog.FromContext(ctx).Info(warning)
	}
	registry := metrics.NewRegistry()
	client, err := connectKube(o, registry)
	if err != nil {
		return err
	}
	driver, err := csiclient.New(csiclient.Config{
		Address:      o.CSI.Address,
		Metrics:      measureCalls(registry),
		Services:     csiclient.ControllerService,
		MaxLogLength: max(o.MaxGRPCLogLength, 0),
		ExitOnLoss:   o.ExitOnConnectionLoss,
	})
	if err != nil {
		return err
	}
	c := &component{options: o, kube: client, driver: driver, registry: registry}
	return errors.Join(c.run(ctx), driver.Close())
}

// measureCalls makes the metric of the calls to the driver.
func measureCalls(registry prometheus.Registerer) *metrics.CSI {
	return metrics.NewSidecarCSI(registry, metrics.ForMigration(controller.ReplacesPlugin))
}

func connectKube(o Options, registry prometheus.Registerer) (kube.Client, error) {
	cfg, err := kube.Config(o.Kube, name+"/"+version.Get().Version)
	if err != nil {
		return nil, err
	}
	cfg.Wrap(kubemetrics.NewRest(registry).Wrap)
	return kube.New(cfg)
}

// component is one attacher with its connections.
type component struct {
	options  Options
	kube     kube.Client
	driver   *csiclient.Client
	registry *prometheus.Registry
	// host overwrites the name of this machine, in the Lease and in events.
	host string

	health     leader.Health
	leading    atomic.Bool
	controller atomic.Pointer[controller.Controller]
}

// run opens the listener, if one is asked for, and works until ctx ends.
func (c *component) run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithName(name))
	server, err := c.listen(ctx)
	if err != nil {
		return err
	}
	return c.serve(ctx, server)
}

// serve runs the work beside the services that must outlast it, so that metrics and events of the last operations
// are not lost. server may be nil.
func (c *component) serve(parent context.Context, server *httpserve.Server) error {
	recorder, err := events.NewRecorder(events.Config{Client: c.kube, Component: name, Host: c.host, Registerer: c.registry})
	if err != nil {
		return err
	}
	ctx, fail := context.WithCancelCause(parent)
	defer fail(nil)
	background, stop := context.WithCancel(context.WithoutCancel(parent))
	defer stop()

	var services sync.WaitGroup
	serve := func(run func(context.Context) error) {
		services.Go(func() { fail(run(background)) })
	}
	serve(recorder.Run)
	if server != nil {
		serve(server.Run)
	}
	err = c.work(ctx, recorder, fail)
	if err == nil && parent.Err() == nil {
		err = context.Cause(ctx) // what fail was called with
	}
	stop()
	services.Wait()
	return err
}

// listen opens the HTTP listener, or returns nil if none is asked for.
func (c *component) listen(ctx context.Context) (*httpserve.Server, error) {
	o := c.options.HTTP
	if o.Address() == "" {
		return nil, nil //nolint:nilnil // no listener was asked for
	}
	return httpserve.Listen(httpserve.Config{
		Address:     o.Address(),
		MetricsPath: o.MetricsPath,
		Gatherer:    c.registry,
		Ready: map[string]func(context.Context) error{
			"driver":             c.driver.Ready,
			"informer-sync":      c.ready((*controller.Controller).Synced),
			"publish-capability": c.ready((*controller.Controller).AttachLost),
		},
		Leader: c.health.Check,
		Pprof:  o.Pprof,
		State:  c.state,
		Logger: klog.FromContext(ctx),
	})
}

// ready makes a check of the controller, which passes as long as there is none.
func (c *component) ready(check func(*controller.Controller) error) func(context.Context) error {
	return func(context.Context) error {
		if ctrl := c.controller.Load(); ctrl != nil {
			return check(ctrl)
		}
		return nil
	}
}

// state is what /debug/state shows.
func (c *component) state() any {
	state := struct {
		Version string            `json:"version"`
		Leading bool              `json:"leading"`
		State   *controller.State `json:"attachments,omitempty"`
	}{Version: version.Get().String(), Leading: c.leading.Load()}
	if ctrl := c.controller.Load(); ctrl != nil {
		s := ctrl.State()
		state.State = &s
	}
	return state
}

// work waits for the driver, then attaches and detaches until ctx ends. fail ends it early.
func (c *component) work(ctx context.Context, recorder events.Recorder, fail context.CancelCauseFunc) error {
	info, err := c.driver.Wait(ctx)
	if err != nil {
		return ignoreStopped(ctx, err)
	}
	config := c.configure(info.Name, recorder)
	c.controller.Store(controller.New(config))
	c.logFeatures(ctx, info)
	group, ctx := errgroup.WithContext(ctx)
	changed := func(now *csiclient.Info) {
		if now.Name != info.Name {
			fail(fmt.Errorf("CSI driver %q at %q is now %q: %w", info.Name, c.options.CSI.Address, now.Name, errDriverChanged))
			return
		}
		c.logFeatures(ctx, now)
		c.controller.Load().LogPublish(ctx)
		c.controller.Load().WakeAll()
	}
	group.Go(func() error { return c.driver.Run(ctx, changed) })
	group.Go(func() error { return c.rereadWhileLost(ctx, config.Shared, changed) })
	group.Go(func() error { return c.lead(ctx, config) })
	return group.Wait()
}

// rereadWhileLost reads the capabilities again while the driver lacks the one to attach although it has attached volumes:
// a driver that answered while it was starting keeps its connection, so that nothing else would read them again.
func (c *component) rereadWhileLost(ctx context.Context, shared *controller.Shared, changed func(*csiclient.Info)) error {
	quiet := klog.NewContext(ctx, klog.FromContext(ctx).V(4)) //nolint:mnd // each attempt is a detail
	ticker := time.NewTicker(rereadInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if shared.AttachLost() == nil {
			continue
		}
		before := c.driver.Info()
		now, err := c.driver.Wait(quiet)
		if err != nil {
			continue // the driver has gone, or answers what Run reports
		}
		if now.Name != before.Name || controller.FeaturesOf(now) != controller.FeaturesOf(before) {
			changed(now)
		}
	}
}

// ignoreStopped drops an error that only says that ctx has ended.
func ignoreStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // an end that was asked for is none
	}
	return err
}

// configure makes the configuration of the controllers, of which there is one after the other.
func (c *component) configure(driver string, recorder events.Recorder) controller.Config {
	o := c.options
	config := controller.Config{
		Driver:        driver,
		Kube:          c.kube,
		CSI:           c.driver.Controller(),
		Features:      func() controller.Features { return controller.FeaturesOf(c.driver.Info()) },
		Events:        recorder,
		Workers:       o.Workers,
		Retry:         o.Retry,
		CSITimeout:    o.CSI.Timeout,
		KubeTimeout:   o.KubeTimeout,
		NodeRetry:     o.NodeRetry,
		Resync:        o.Resync,
		ReconcileSync: o.ReconcileSync,
		MaxEntries:    int32(o.MaxEntries), //nolint:gosec // Validate has checked the range
		DefaultFSType: o.DefaultFSType,
		Secrets:       kube.NewSecretCache(c.kube, o.Secrets.Namespaces),
		ErrorCode:     o.Features.Enabled(GateErrorCode),
		QueueMetrics:  kubemetrics.NewQueues(c.registry),
		Registerer:    c.registry,
	}
	config.Shared = controller.NewShared(config)
	return config
}

func (c *component) logFeatures(ctx context.Context, info *csiclient.Info) {
	logger := klog.FromContext(ctx).WithValues(logging.KeyDriver, info.Name)
	logger.Info("Read capabilities of the driver", logging.KeyCapabilities, controller.FeaturesOf(info))
}

// lead runs the controller, as the elected leader if an election is asked for. If the Lease is lost, the next controller waits.
func (c *component) lead(ctx context.Context, config controller.Config) error {
	runWhileLeading := func(ctx context.Context) error {
		c.leading.Store(true)
		defer c.leading.Store(false)
		defer func() { c.controller.Store(controller.New(config)) }()
		return c.controller.Load().Run(ctx)
	}
	le := c.options.LeaderElection
	if !le.Enabled {
		return runWhileLeading(ctx)
	}
	return leader.Serve(ctx, leader.Config{
		Client:        c.kube,
		Namespace:     le.Namespace,
		Name:          controller.LeaseName(config.Driver),
		Identity:      c.host,
		Labels:        le.Labels,
		LeaseDuration: le.LeaseDuration,
		RenewDeadline: le.RenewDeadline,
		RetryPeriod:   le.RetryPeriod,
		Metrics:       kubemetrics.NewLeader(c.registry),
		Health:        &c.health,
	}, runWhileLeading)
}
