package resizer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/events"
	"github.com/longshore-csi/longshore/csikit/httpserve"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/kubemetrics"
	"github.com/longshore-csi/longshore/csikit/leader"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/metrics"
	"github.com/longshore-csi/longshore/csikit/version"
	"github.com/longshore-csi/longshore/resizer/internal/controller"
)

// rereadInterval is how often the capabilities of a driver that can neither expand nor modify are read again.
const rereadInterval = 5 * time.Second

// name is the name of the component for the API server.
const name = "csi-resizer"

// errDriverChanged: another driver answers at the same socket.
var errDriverChanged = errors.New("another driver has taken the socket")

// Run expands and modifies the volumes of the driver behind o.CSI until ctx ends, which is no
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
		Address:    o.CSI.Address,
		Metrics:    measureCalls(registry),
		Services:   csiclient.ControllerService | csiclient.NodeService,
		ExitOnLoss: o.ExitOnConnectionLoss,
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

// component is one resizer with its connections.
type component struct {
	options  Options
	kube     kube.Client
	driver   *csiclient.Client
	registry *prometheus.Registry
	// host overwrites the name of this machine, in the Lease and in events.
	host string

	health     leader.Health
	leading    atomic.Bool
	controller atomic.Pointer[controller.Controller] // nil while this instance does not lead
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

// serve works beside the listener, which outlasts the work so that metrics of the last operations are not lost. server may be nil.
func (c *component) serve(ctx context.Context, server *httpserve.Server) error {
	if server == nil {
		return c.work(ctx)
	}
	group, working := errgroup.WithContext(ctx)
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error { return server.Run(background) })
	group.Go(func() error {
		defer stop()
		return c.work(working)
	})
	return group.Wait()
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
			"driver": c.driver.Ready,
			"informer-sync": func(context.Context) error {
				if ctrl := c.controller.Load(); ctrl != nil {
					return ctrl.Synced()
				}
				return nil
			},
			"capabilities": func(context.Context) error { return c.checkFeatures() },
		},
		Leader: c.health.Check,
		Pprof:  o.Pprof,
		State:  c.state,
		Logger: klog.FromContext(ctx),
	})
}

// checkFeatures returns an error while the driver, if it is known, can neither expand nor modify.
func (c *component) checkFeatures() error {
	info := c.driver.Info()
	if info == nil {
		return nil
	}
	return controller.FeaturesOf(info).Check(info.Name)
}

// state is what /debug/state shows.
func (c *component) state() any {
	state := struct {
		Version string            `json:"version"`
		Leading bool              `json:"leading"`
		State   *controller.State `json:"claims,omitempty"`
	}{Version: version.Get().String(), Leading: c.leading.Load()}
	if ctrl := c.controller.Load(); ctrl != nil {
		s := ctrl.State()
		state.State = &s
	}
	return state
}

// work waits for the driver, then expands and modifies until ctx ends.
func (c *component) work(ctx context.Context) error {
	info, err := c.driver.Wait(ctx)
	if err != nil {
		return ignoreStopped(ctx, err)
	}
	recorder, err := events.NewRecorder(events.Config{
		Client: c.kube, Component: controller.Component(info.Name), Host: c.host, Registerer: c.registry,
	})
	if err != nil {
		return err
	}
	c.logFeatures(ctx, info)

	recording, stop := context.WithCancel(context.WithoutCancel(ctx))
	recorded := make(chan error, 1)
	go func() { recorded <- recorder.Run(recording) }()
	group, ctx := errgroup.WithContext(ctx)
	changed := func(now *csiclient.Info) error {
		if now.Name != info.Name {
			return fmt.Errorf("CSI driver %q at %q is now %q: %w", info.Name, c.options.CSI.Address, now.Name, errDriverChanged)
		}
		c.logFeatures(ctx, now)
		if ctrl := c.controller.Load(); ctrl != nil {
			ctrl.WakeAll()
		}
		return nil
	}
	group.Go(func() error { return c.followDriver(ctx, changed) })
	group.Go(func() error { return c.rereadWhileIncapable(ctx, changed) })
	group.Go(func() error { return c.lead(ctx, c.configure(info.Name, recorder)) })
	err = group.Wait()
	stop() // the events of the last operations are written first
	return errors.Join(err, <-recorded)
}

// followDriver waits for the driver when its connection is lost, until changed fails.
func (c *component) followDriver(ctx context.Context, changed func(*csiclient.Info) error) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var failure error
	err := c.driver.Run(ctx, func(now *csiclient.Info) {
		if failure = changed(now); failure != nil {
			fail(failure)
		}
	})
	return errors.Join(failure, err)
}

// rereadWhileIncapable reads the capabilities again while the driver announces nothing that a resizer does: a driver that answered
// while it was starting keeps its connection, so that nothing else would read them again.
func (c *component) rereadWhileIncapable(ctx context.Context, changed func(*csiclient.Info) error) error {
	quiet := klog.NewContext(ctx, klog.FromContext(ctx).V(4)) //nolint:mnd // each attempt is a detail
	ticker := time.NewTicker(rereadInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if c.checkFeatures() == nil {
			continue
		}
		before := c.driver.Info()
		now, err := c.driver.Wait(quiet)
		if err != nil {
			continue // the driver has gone, or answers what Run reports
		}
		if now.Name != before.Name || controller.FeaturesOf(now) != controller.FeaturesOf(before) {
			if err := changed(now); err != nil {
				return err
			}
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

// configure makes the configuration of the controllers, of which there is one for each time that this instance leads.
func (c *component) configure(driver string, recorder events.Recorder) controller.Config {
	o := c.options
	return controller.Config{
		Driver:            driver,
		Kube:              c.kube,
		CSI:               c.driver.Controller(),
		Features:          func() controller.Features { return controller.FeaturesOf(c.driver.Info()) },
		Events:            recorder,
		Workers:           o.Workers,
		Retry:             o.Retry,
		ResizeTimeout:     o.resizeTimeout(),
		ModifyTimeout:     o.modifyTimeout(),
		KubeTimeout:       o.KubeTimeout,
		Resync:            o.Resync,
		WaitUntilUnused:   o.WaitUntilUnused,
		AttributesClasses: o.Features.Enabled(GateAttributesClass),
		ExtraMetadata:     o.ExtraModifyMetadata,
		AnnotatePreResize: o.Features.Enabled(GateAnnotate),
		Secrets:           kube.NewSecretCache(c.kube, o.Secrets.Namespaces),
		QueueMetrics:      kubemetrics.NewQueues(c.registry),
		Registerer:        c.registry,
	}
}

func (c *component) logFeatures(ctx context.Context, info *csiclient.Info) {
	logger := klog.FromContext(ctx).WithValues(logging.KeyDriver, info.Name)
	features := controller.FeaturesOf(info)
	logger.Info("Read capabilities of the driver", logging.KeyCapabilities, features)
	if err := features.Check(info.Name); err != nil {
		logger.Error(err, "There is nothing to do; the capabilities are read again every few seconds")
	}
}

// lead runs a controller, as the elected leader if an election is asked for; after a lost Lease, another one when this instance leads again.
func (c *component) lead(ctx context.Context, config controller.Config) error {
	runWhileLeading := func(ctx context.Context) error {
		ctrl, err := controller.New(config)
		if err != nil {
			return err
		}
		c.leading.Store(true)
		defer c.leading.Store(false)
		c.controller.Store(ctrl)
		defer c.controller.Store(nil)
		return ctrl.Run(ctx)
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
