package sidecar

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/component"
	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/events"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/metrics"
)

// rereadInterval is how often the capabilities of a driver that announces too little are read again.
const rereadInterval = 5 * time.Second

// instance is one running sidecar.
type instance struct {
	Config
	driver *csiclient.Client
	// work is nil as long as the driver is not known.
	work     atomic.Pointer[Work]
	presence presence
}

// connect prepares the connection to the driver.
func (c *instance) connect(registry *prometheus.Registry) (err error) {
	var options []metrics.Option
	if c.Migrated != nil {
		options = append(options, metrics.ForMigration(c.Migrated))
	}
	c.CSI.Address, c.CSI.Timeout, c.CSI.ExitOnLoss = c.Options.CSI.Address, c.Options.CSI.Timeout, c.Options.ExitOnConnectionLoss
	c.CSI.Metrics = metrics.NewSidecarCSI(registry, options...)
	c.driver, err = csiclient.New(c.CSI)
	return err
}

// component returns what the sidecar is without its driver.
func (c *instance) component(registry *prometheus.Registry) component.Config {
	return component.Config{
		Name:     c.Name,
		Options:  c.Options.Options,
		Warnings: c.Warnings,
		Registry: registry,
		Names: func(ctx context.Context) (component.Names, error) {
			info, err := c.driver.Wait(ctx)
			if err != nil {
				return component.Names{}, err
			}
			names := component.Names{Events: c.EventComponent(info.Name), About: about(info.Name)}
			if c.LeaseName != nil {
				names.Lease = c.LeaseName(info.Name)
			}
			return names, nil
		},
		New:       c.begin,
		StateKey:  c.StateKey,
		Checks:    map[string]func(context.Context) error{"driver": c.driver.Ready, c.CheckName: func(context.Context) error { return c.check() }},
		ReadyPath: c.ReadyPath,
		NoMetrics: c.NoMetrics,
		Connected: c.Connected,
		Client:    c.Client,
		Host:      c.Host,
	}
}

// begin makes the work for the driver, which is known.
func (c *instance) begin(ctx context.Context, env component.Environment) (component.Work, error) {
	info := c.driver.Info()
	work, err := c.New(ctx, Environment{
		Environment: env, Driver: info.Name, CSI: c.driver, Secrets: kube.NewSecretCache(env.Kube, c.Options.Secrets.Namespaces),
	})
	if err != nil {
		return component.Work{}, err
	}
	c.work.Store(&work)
	c.logFeatures(ctx, info)
	able := c.presence.wait
	if c.LeaseName == nil {
		able = nil
	}
	return component.Work{
		NewController: func() component.Controller { return work.NewController() },
		Able:          able,
		Beside: func(ctx context.Context, now func() component.Controller) error {
			return c.follow(ctx, info.Name, env.Events, func() Controller { return now().(Controller) }) //nolint:forcetypeassert // NewController makes no others
		},
	}, nil
}

// check is Work.Check, which passes as long as the driver is not known.
func (c *instance) check() error {
	if work := c.work.Load(); work != nil {
		return work.Check()
	}
	return nil
}

// follow has the controller notified when the driver comes back, or announces other capabilities.
func (c *instance) follow(ctx context.Context, driver string, recorder events.Recorder, now func() Controller) error {
	changed := func(info *csiclient.Info) error {
		if info.Name != driver {
			return fmt.Errorf("CSI driver %q at %q is now %q: %w", driver, c.Options.CSI.Address, info.Name, ErrDriverChanged)
		}
		c.logFeatures(ctx, info)
		if changed := c.work.Load().DriverChanged; changed != nil {
			if err := changed(ctx, info); err != nil {
				return err
			}
		}
		now().DriverChanged(ctx)
		c.presence.set(true)
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.followDriver(ctx, changed) })
	group.Go(func() error { return c.rereadWhileLacking(ctx, changed) })
	group.Go(func() error { c.followHung(ctx, driver, recorder, now); return nil })
	group.Go(func() error { c.followAway(ctx, driver, recorder); return nil })
	return group.Wait()
}

// logFeatures logs the capabilities of the driver, and the error of the component's check.
func (c *instance) logFeatures(ctx context.Context, info *csiclient.Info) {
	logger := klog.FromContext(ctx).WithValues(logging.KeyDriver, info.Name)
	logger.Info("Read capabilities of the driver", logging.KeyCapabilities, c.Features(info))
	if err := c.check(); err != nil && c.CheckMessage != "" {
		logger.Error(err, c.CheckMessage)
	}
}

// followDriver waits for the driver when its connection is lost, until changed fails.
func (c *instance) followDriver(ctx context.Context, changed func(*csiclient.Info) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var failure error
	away := func() {
		klog.FromContext(ctx).Info("The driver is away: work stops until it is back, and another instance may take over", logging.KeyAddress, c.Options.CSI.Address)
		c.presence.set(false)
	}
	err := c.driver.Run(ctx, away, func(now *csiclient.Info) {
		if failure = changed(now); failure != nil {
			cancel()
		}
	})
	return errors.Join(failure, err)
}

// Reasons of events on the CSIDriver object.
const (
	reasonAway = "DriverNotConnected"
	reasonHung = "DriverNotResponding"
	reasonBack = "DriverResponding"
)

// awayGrace is how long a driver is away before that is reported. One that is replaced is back before.
const awayGrace = 15 * time.Second

// about is the object that gets the events about a driver and its sidecars.
func about(driver string) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: storagev1.SchemeGroupVersion.String(), Kind: "CSIDriver", Name: driver}
}

// followAway reports a driver that does not accept connections, by an event on its CSIDriver object.
func (c *instance) followAway(ctx context.Context, driver string, recorder events.Recorder) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.presence.wait(ctx):
		}
		report := time.AfterFunc(awayGrace, func() {
			recorder.Warning(about(driver), reasonAway, fmt.Sprintf(
				"%s has lost its connection to the driver at %s, and does nothing until the driver is back: look whether the driver's container runs, and at its log", c.Name, c.Options.CSI.Address))
		})
		c.presence.wait(ctx)
		if !report.Stop() && ctx.Err() == nil {
			recorder.Normal(about(driver), reasonBack, "The driver answers "+c.Name+" again")
		}
	}
}

// followHung reports a driver that accepts connections and does not answer, by an event on its CSIDriver object, and has everything tried again when it does.
func (c *instance) followHung(ctx context.Context, driver string, recorder events.Recorder, now func() Controller) {
	logger := klog.FromContext(ctx).WithValues(logging.KeyDriver, driver, logging.KeyAddress, c.Options.CSI.Address)
	c.driver.WatchHung(ctx, func(err error) {
		logger.Error(err, "The driver does not answer")
		recorder.Warning(about(driver), reasonHung, fmt.Sprintf(
			"%s gets no answer from the driver: Probe was not answered within %v, nor was the call before it. It goes on as soon as Probe is answered; until then look at the log of the driver's container, and whether its storage system can be reached",
			c.Name, c.Options.CSI.Timeout))
	}, func() {
		logger.Info("The driver answers again")
		recorder.Normal(about(driver), reasonBack, "The driver answers "+c.Name+" again")
		now().DriverChanged(ctx)
	})
}

// rereadWhileLacking reads the capabilities again while the driver announces too little.
func (c *instance) rereadWhileLacking(ctx context.Context, changed func(*csiclient.Info) error) error {
	quiet := klog.NewContext(ctx, klog.FromContext(ctx).V(4)) //nolint:mnd // each attempt is a detail
	ticker := time.NewTicker(rereadInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if c.check() == nil {
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
