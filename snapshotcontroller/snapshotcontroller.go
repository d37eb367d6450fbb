package snapshotcontroller

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/events"
	"github.com/longshore-csi/longshore/csikit/httpserve"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/kubemetrics"
	"github.com/longshore-csi/longshore/csikit/leader"
	"github.com/longshore-csi/longshore/csikit/procmetrics"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/csikit/version"
	"github.com/longshore-csi/longshore/snapshotcontroller/internal/controller"
)

const name = "snapshot-controller"

// Run works until ctx ends, which is no error. It waits until the kinds of snapshots are installed, then, if o.LeaderElection asks for it,
// for the Lease. Writes that have begun when ctx ends are finished first.
//
// It returns an error for options that are not valid, an address that cannot be listened on, and a missing kubeconfig. An instance that
// loses the Lease stops what it does, and waits for it again. The logger is taken from ctx.
func Run(ctx context.Context, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	return run(ctx, o, connections{})
}

// connections are those that tests replace.
type connections struct {
	kube      kube.Client
	snapshots snapshotapi.Client
	host      string // empty: see leader.Config and events.Config
}

// component is one running snapshot controller.
type component struct {
	Options
	connections
	registry *prometheus.Registry
	config   controller.Config

	kinds   controller.Kinds
	health  leader.Health
	leading atomic.Bool
	current atomic.Pointer[controller.Controller]
}

func run(ctx context.Context, o Options, with connections) error {
	for _, warning := range o.Warnings() {
		klog.FromContext(ctx).Info(warning)
	}
	c := &component{Options: o, connections: with, registry: procmetrics.NewRegistry()}
	if err := c.connect(); err != nil {
		return err
	}
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithName(name))
	if o.HTTP.Address() == "" {
		return c.work(ctx)
	}
	server, err := c.listen(ctx)
	if err != nil {
		return err
	}
	// The listener outlasts the work, so that metrics of the last writes are not lost.
	group, working := errgroup.WithContext(ctx)
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error { return server.Run(background) })
	group.Go(func() error {
		defer stop()
		return c.work(working)
	})
	return group.Wait()
}

// connect prepares the clients.
func (c *component) connect() error {
	if c.kube != nil {
		return nil
	}
	rest, err := kube.Config(c.Kube, name+"/"+version.Get().Version)
	if err != nil {
		return err
	}
	rest.Wrap(kubemetrics.NewRest(c.registry).Wrap)
	if c.kube, err = kube.New(rest); err != nil {
		return err
	}
	c.snapshots, err = snapshotapi.New(rest)
	return err
}

func (c *component) listen(ctx context.Context) (*httpserve.Server, error) {
	return httpserve.Listen(httpserve.Config{
		Address:     c.HTTP.Address(),
		MetricsPath: c.HTTP.MetricsPath,
		Gatherer:    c.registry,
		Ready: map[string]func(context.Context) error{
			"crds":          func(context.Context) error { return c.kinds.Check() },
			"informer-sync": func(context.Context) error { return c.synced() },
		},
		Leader: c.health.Check,
		Pprof:  c.HTTP.Pprof,
		State:  c.state,
		Logger: klog.FromContext(ctx),
	})
}

// synced returns an error while the controller waits for a first list, with a hint.
func (c *component) synced() error {
	now := c.current.Load()
	if now == nil {
		return nil
	}
	if err := now.Synced(); err != nil {
		return fmt.Errorf("%w from the API server; does the role of %s allow list and watch?", err, name)
	}
	return nil
}

// state is what /debug/state shows.
func (c *component) state() any {
	s := struct {
		Version   string `json:"version"`
		Leading   bool   `json:"leading"`
		Snapshots any    `json:"snapshots,omitempty"`
	}{Version: version.Get().String(), Leading: c.leading.Load()}
	if now := c.current.Load(); now != nil {
		s.Snapshots = now.State()
	}
	return s
}

// work waits for the kinds, then works until ctx ends.
func (c *component) work(ctx context.Context) error {
	recorder, err := events.NewRecorder(events.Config{Client: c.kube, Component: controller.Component, Host: c.host, Registerer: c.registry})
	if err != nil {
		return err
	}
	c.config = controller.Config{
		Kube: c.kube, Snapshots: c.snapshots, Events: recorder, Workers: c.Workers, Retry: c.Retry, KubeTimeout: c.KubeTimeout, Resync: c.Resync,
		SourceVolumeMode: c.PreventModeConversion, Distributed: c.Distributed, Groups: c.Features.Enabled(GateGroups), CRDInterval: c.CRDInterval, Operations: controller.NewOperations(c.registry),
		Report:       controller.NewReport(c.registry),
		QueueMetrics: kubemetrics.NewQueues(c.registry), Registerer: c.registry,
	}
	if err := c.kinds.Wait(ctx, c.snapshots, c.CRDInterval, c.KubeTimeout); err != nil {
		return nil //nolint:nilerr // ctx has ended before there was anything to do
	}
	recording, stop := context.WithCancel(context.WithoutCancel(ctx))
	recorded := make(chan error, 1)
	go func() { recorded <- recorder.Run(recording) }()
	err = c.lead(ctx)
	stop() // the events of the last writes are written first
	return errors.Join(err, <-recorded)
}

// lead runs the controller, as the elected leader if an election is asked for. After a lost Lease, the next controller waits.
func (c *component) lead(ctx context.Context) error {
	c.current.Store(controller.New(c.config))
	runWhileLeading := func(ctx context.Context) error {
		c.leading.Store(true)
		defer c.leading.Store(false)
		defer func() { c.current.Store(controller.New(c.config)) }()
		return c.current.Load().Run(ctx)
	}
	le := c.LeaderElection
	if !le.Enabled {
		return runWhileLeading(ctx)
	}
	return leader.Serve(ctx, leader.Config{
		Client:        c.kube,
		Namespace:     le.Namespace,
		Name:          controller.LeaseName,
		Identity:      c.host,
		Labels:        le.Labels,
		LeaseDuration: le.LeaseDuration,
		RenewDeadline: le.RenewDeadline,
		RetryPeriod:   le.RetryPeriod,
		Metrics:       kubemetrics.NewLeader(c.registry),
		Health:        &c.health,
	}, runWhileLeading)
}
