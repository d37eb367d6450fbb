package sidecar

import (
	"bytes"
	"context"
	"encoding/json"
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
	"github.com/longshore-csi/longshore/csikit/version"
)

// rereadInterval is how often the capabilities of a driver that announces too little are read again.
const rereadInterval = 5 * time.Second

// component is one running sidecar with its connections.
type component struct {
	Config
	driver   *csiclient.Client
	registry *prometheus.Registry

	health  leader.Health
	leading atomic.Bool
	current atomic.Pointer[current]
}

// current is the controller at work, or the one that waits until this instance leads, with the component's check. It is made when the driver
// is known.
type current struct {
	Controller
	check func() error
}

// renew replaces the controller, which runs only once.
func (c *component) renew(work Work) {
	c.current.Store(&current{Controller: work.NewController(), check: work.Check})
}

// run opens the listener, if one is asked for, and works until ctx ends. The listener outlasts the work, so that metrics of the last
// operations are not lost.
func (c *component) run(ctx context.Context) error {
	if c.Options.HTTP.Address() == "" {
		return c.work(ctx)
	}
	server, err := c.listen(ctx)
	if err != nil {
		return err
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

func (c *component) listen(ctx context.Context) (*httpserve.Server, error) {
	o := c.Options.HTTP
	var metrics prometheus.Gatherer = c.registry
	if c.NoMetrics {
		metrics = nil
	}
	return httpserve.Listen(httpserve.Config{
		Address:     o.Address(),
		MetricsPath: o.MetricsPath,
		Gatherer:    metrics,
		Ready: map[string]func(context.Context) error{
			"driver":        c.driver.Ready,
			"informer-sync": c.ready(c.synced),
			c.CheckName:     c.ready(func(now *current) error { return now.check() }),
		},
		ReadyPath: c.ReadyPath,
		Leader:    c.health.Check,
		Pprof:     o.Pprof,
		State:     c.state,
		Logger:    klog.FromContext(ctx),
	})
}

// ready makes a check that passes as long as the driver is not known.
func (c *component) ready(check func(*current) error) func(context.Context) error {
	return func(context.Context) error {
		if now := c.current.Load(); now != nil {
			return check(now)
		}
		return nil
	}
}

// synced returns an error while the controller waits for a first list, with a hint.
func (c *component) synced(now *current) error {
	if err := now.Synced(); err != nil {
		return fmt.Errorf("%w from the API server; does the role of %s allow list and watch?", err, c.Name)
	}
	return nil
}

// state is what /debug/state shows.
func (c *component) state() any {
	s := state{Version: version.Get().String(), Leading: c.leading.Load(), key: c.StateKey}
	if now := c.current.Load(); now != nil {
		s.controller = now.State()
	}
	return s
}

type state struct {
	Version    string `json:"version"`
	Leading    bool   `json:"leading"`
	key        string
	controller any
}

// MarshalJSON implements json.Marshaler: the state of the controller, if there is any, comes last, under the key of the component.
func (s state) MarshalJSON() ([]byte, error) {
	type common state
	text, err := json.Marshal(common(s))
	if err != nil || s.controller == nil {
		return text, err
	}
	last, err := json.Marshal(map[string]any{s.key: s.controller})
	return append(append(bytes.TrimSuffix(text, []byte("}")), ','), bytes.TrimPrefix(last, []byte("{"))...), err
}

// work waits for the driver, then works and follows the driver until ctx ends.
func (c *component) work(ctx context.Context) error {
	info, err := c.driver.Wait(ctx)
	if err != nil {
		return ignoreStopped(ctx, err)
	}
	recorder, err := events.NewRecorder(events.Config{
		Client: c.Client, Component: c.EventComponent(info.Name), Host: c.Host, Registerer: c.registry,
	})
	if err != nil {
		return err
	}
	work := c.New(c.environment(info.Name, recorder))
	c.renew(work)
	c.logFeatures(ctx, info)

	recording, stop := context.WithCancel(context.WithoutCancel(ctx))
	recorded := make(chan error, 1)
	go func() { recorded <- recorder.Run(recording) }()
	group, ctx := errgroup.WithContext(ctx)
	changed := func(now *csiclient.Info) error {
		if now.Name != info.Name {
			return fmt.Errorf("CSI driver %q at %q is now %q: %w", info.Name, c.Options.CSI.Address, now.Name, ErrDriverChanged)
		}
		c.logFeatures(ctx, now)
		c.current.Load().DriverChanged(ctx)
		return nil
	}
	group.Go(func() error { return c.followDriver(ctx, changed) })
	group.Go(func() error { return c.rereadWhileLacking(ctx, work.Check, changed) })
	group.Go(func() error { return c.lead(ctx, info.Name, work) })
	err = group.Wait()
	stop() // the events of the last operations are written first
	return errors.Join(err, <-recorded)
}

// ignoreStopped drops an error that only says that ctx has ended.
func ignoreStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // an end that was asked for is none
	}
	return err
}

func (c *component) environment(driver string, recorder events.Recorder) Environment {
	return Environment{
		Driver:       driver,
		CSI:          c.driver,
		Kube:         c.Client,
		Secrets:      kube.NewSecretCache(c.Client, c.Options.Secrets.Namespaces),
		Events:       recorder,
		QueueMetrics: kubemetrics.NewQueues(c.registry),
		Registerer:   c.registry,
	}
}

// logFeatures logs the capabilities of the driver, and the error of the component's check.
func (c *component) logFeatures(ctx context.Context, info *csiclient.Info) {
	logger := klog.FromContext(ctx).WithValues(logging.KeyDriver, info.Name)
	logger.Info("Read capabilities of the driver", logging.KeyCapabilities, c.Features(info))
	if err := c.current.Load().check(); err != nil && c.CheckMessage != "" {
		logger.Error(err, c.CheckMessage)
	}
}

// followDriver waits for the driver when its connection is lost, until changed fails.
func (c *component) followDriver(ctx context.Context, changed func(*csiclient.Info) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var failure error
	err := c.driver.Run(ctx, func(now *csiclient.Info) {
		if failure = changed(now); failure != nil {
			cancel()
		}
	})
	return errors.Join(failure, err)
}

// rereadWhileLacking reads the capabilities again while the driver announces too little.
func (c *component) rereadWhileLacking(ctx context.Context, check func() error, changed func(*csiclient.Info) error) error {
	quiet := klog.NewContext(ctx, klog.FromContext(ctx).V(4)) //nolint:mnd // each attempt is a detail
	ticker := time.NewTicker(rereadInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if check() == nil {
			continue
		}
		before := c.driver.Info()
		now, err := c.driver.Wait(quiet)
		if err != nil {
			continue // the driver has gone, or answers what Run reports
		}
		if now.Name != before.Name || c.Features(now) != c.Features(before) {
			if err := changed(now); err != nil {
				return err
			}
		}
	}
}

// lead runs the controller, as the elected leader if an election is asked for. After a lost Lease, the next controller waits.
func (c *component) lead(ctx context.Context, driver string, work Work) error {
	runWhileLeading := func(ctx context.Context) error {
		c.leading.Store(true)
		defer c.leading.Store(false)
		defer c.renew(work)
		return c.current.Load().Run(ctx)
	}
	le := c.Options.LeaderElection
	if !le.Enabled {
		return runWhileLeading(ctx)
	}
	return leader.Serve(ctx, leader.Config{
		Client:        c.Client,
		Namespace:     le.Namespace,
		Name:          c.LeaseName(driver),
		Identity:      c.Host,
		Labels:        le.Labels,
		LeaseDuration: le.LeaseDuration,
		RenewDeadline: le.RenewDeadline,
		RetryPeriod:   le.RetryPeriod,
		Metrics:       kubemetrics.NewLeader(c.registry),
		Health:        &c.health,
	}, runWhileLeading)
}
