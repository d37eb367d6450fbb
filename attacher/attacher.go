package attacher

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

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

// name is how the component calls itself towards the API server and in events.
const name = "csi-attacher"

// errDriverChanged is another driver behind the same socket.
var errDriverChanged = errors.New("another driver has taken the socket")

// Run attaches and detaches the volumes of the driver behind o.CSI until ctx ends, which is no
// error. It waits for the driver, then, if o.LeaderElection asks for it, for the Lease. Operations
// that have begun when ctx ends are finished first, within a limit.
//
// It returns an error for options that are not valid, an address that cannot be listened on, a missing
// kubeconfig, leader.ErrLost when the Lease is lost, and csiclient.ErrConnectionLost if
// o.ExitOnConnectionLoss is set. The logger is taken from ctx.
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
		Metrics:      metrics.NewSidecarCSI(registry),
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

// serve works beside the services that must outlast the work: what happens while
// the process stops shall still be measured and told. No server, nil, is none.
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
		err = context.Cause(ctx) // who called fail
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
		Ready:       map[string]func(context.Context) error{"driver": c.driver.Ready},
		Leader:      c.health.Check,
		Pprof:       o.Pprof,
		State:       c.state,
		Logger:      klog.FromContext(ctx),
	})
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

// work waits for the driver and does what there is to do until ctx ends. fail ends it early.
func (c *component) work(ctx context.Context, recorder events.Recorder, fail context.CancelCauseFunc) error {
	info, err := c.driver.Wait(ctx)
	if err != nil {
		return unlessStopped(ctx, err)
	}
	ctrl := c.newController(info.Name, recorder)
	c.controller.Store(ctrl)
	c.logFeatures(ctx, info)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return c.driver.Run(ctx, func(now *csiclient.Info) {
			if now.Name != info.Name {
				fail(fmt.Errorf("CSI driver %q at %q is now %q: %w", info.Name, c.options.CSI.Address, now.Name, errDriverChanged))
				return
			}
			c.logFeatures(ctx, now)
			ctrl.WakeAll()
		})
	})
	group.Go(func() error { return c.lead(ctx, info.Name, ctrl) })
	return group.Wait()
}

// unlessStopped drops an error that only says that ctx has ended.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // an end that was asked for is none
	}
	return err
}

func (c *component) newController(driver string, recorder events.Recorder) *controller.Controller {
	o := c.options
	return controller.New(controller.Config{
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
		ErrorCode:     o.Features.Enabled(GateErrorCode),
		QueueMetrics:  kubemetrics.NewQueues(c.registry),
		Registerer:    c.registry,
	})
}

func (c *component) logFeatures(ctx context.Context, info *csiclient.Info) {
	logger := klog.FromContext(ctx).WithValues(logging.KeyDriver, info.Name)
	features := controller.FeaturesOf(info)
	logger.Info("Read capabilities of the driver", logging.KeyCapabilities, features)
	if !features.Publish {
		logger.Info("Driver cannot attach: VolumeAttachments are marked attached without asking it. " +
			"Set attachRequired: false in its CSIDriver object, then no attacher is needed")
	}
}

// lead runs the controller, as the elected leader if an election is asked for.
func (c *component) lead(ctx context.Context, driver string, ctrl *controller.Controller) error {
	reign := func(ctx context.Context) error {
		c.leading.Store(true)
		defer c.leading.Store(false)
		return ctrl.Run(ctx)
	}
	le := c.options.LeaderElection
	if !le.Enabled {
		return reign(ctx)
	}
	return leader.Run(ctx, leader.Config{
		Client:        c.kube,
		Namespace:     le.Namespace,
		Name:          controller.LeaseName(driver),
		Identity:      c.host,
		Labels:        le.Labels,
		LeaseDuration: le.LeaseDuration,
		RenewDeadline: le.RenewDeadline,
		RetryPeriod:   le.RetryPeriod,
		Metrics:       kubemetrics.NewLeader(c.registry),
		Health:        &c.health,
	}, reign)
}
