package livenessprobe

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/httpserve"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/metrics"
	"github.com/longshore-csi/longshore/csikit/procmetrics"
	"github.com/longshore-csi/longshore/livenessprobe/internal/probe"
)

// Run answers probes until ctx ends. The driver need not be there yet. It
// fails when an option is wrong or an address cannot be listened on.
func Run(ctx context.Context, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	for _, warning := range o.Warnings() {
		klog.FromContext(ctx).Info("Command line", logging.KeyReason, warning)
	}
	reg := procmetrics.NewRegistry()
	measured := metrics.NewSidecarCSI(reg)
	client, err := csiclient.New(csiclient.Config{Address: o.CSI.Address, Timeout: o.CSI.Timeout, Metrics: measured})
	if err != nil {
		return err
	}
	prober := probe.New(probe.Config{
		Driver: client, MaxAge: o.ResultMaxAge, Grace: o.StartupGrace, Named: measured.SetDriverName, Registerer: reg,
	})
	return errors.Join(serve(ctx, &o, reg, prober), client.Close())
}

// serve binds all addresses, then serves them until ctx ends.
func serve(ctx context.Context, o *Options, gatherer prometheus.Gatherer, prober *probe.Prober) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, cfg := range listeners(ctx, o, gatherer, prober) {
		server, err := httpserve.Listen(cfg)
		if err != nil {
			// What is bound already is released by the context of the group.
			group.Go(func() error { return fmt.Errorf("serve %s: %w", cfg.Address, err) })
			break
		}
		if o.listening != nil {
			o.listening(server.Addr())
		}
		group.Go(func() error { return server.Run(ctx) })
	}
	return group.Wait()
}

// listeners returns the health listener, which has the metrics as well if it
// was asked for by its present name, and the metrics listener of old.
func listeners(ctx context.Context, o *Options, gatherer prometheus.Gatherer, prober *probe.Prober) []httpserve.Config {
	health := httpserve.Config{
		Address:      o.address(),
		Health:       prober.Check,
		Ready:        map[string]func(context.Context) error{"driver": prober.Check},
		State:        func() any { return prober.Answer() },
		CheckTimeout: 2*o.CSI.Timeout + time.Second, // the first answer takes two calls
		Pprof:        o.HTTP.Pprof,
		Logger:       klog.FromContext(ctx),
	}
	if o.HTTP.Endpoint != "" {
		health.Gatherer, health.MetricsPath = gatherer, o.HTTP.MetricsPath
	}
	if o.HTTP.MetricsAddress == "" {
		return []httpserve.Config{health}
	}
	former := httpserve.Config{
		Address: o.HTTP.MetricsAddress, MetricsPath: o.HTTP.MetricsPath, Gatherer: gatherer, Logger: health.Logger,
	}
	return []httpserve.Config{health, former}
}
