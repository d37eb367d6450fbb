package healthmonitor

import (
	"context"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/sidecar"
	"github.com/longshore-csi/longshore/healthmonitor/internal/controller"
)

// Run reports the health of the volumes of the driver behind o.CSI until ctx ends, which is no error. It waits for the driver, then, if o.LeaderElection asks
// for it, for the Lease.
//
// It returns an error for options that are not valid, an address that cannot be listened on, a missing kubeconfig, a driver that has answered that it does not
// report health, and csiclient.ErrConnectionLost if o.ExitOnConnectionLoss is set. The logger is taken from ctx.
func Run(ctx context.Context, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	return sidecar.Run(ctx, o.sidecar())
}

// sidecar returns what makes a sidecar a health monitor.
func (o *Options) sidecar() sidecar.Config {
	return sidecar.Config{
		Name:           "csi-external-health-monitor-controller",
		Options:        o.Options,
		Warnings:       o.Warnings(),
		CSI:            csiclient.Config{Services: csiclient.ControllerService},
		EventComponent: controller.Component,
		LeaseName:      controller.LeaseName,
		StateKey:       "volumes",
		Features:       func(info *csiclient.Info) any { return controller.FeaturesOf(info) },
		CheckName:      "capabilities",
		New:            o.work,
	}
}

// work monitors. A driver without health is an error, as with upstream: the answer is final, whereas a missing answer has been waited for.
func (o *Options) work(_ context.Context, env sidecar.Environment) (sidecar.Work, error) {
	features := func() controller.Features { return controller.FeaturesOf(env.CSI.Info()) }
	check := func() error { return features().Check(env.Driver) }
	if err := check(); err != nil {
		return sidecar.Work{}, err
	}
	metrics, err := controller.NewMetrics(env.Registerer)
	if err != nil {
		return sidecar.Work{}, err
	}
	config := controller.Config{
		Driver:          env.Driver,
		Kube:            env.Kube,
		CSI:             env.CSI.Controller(),
		Features:        features,
		Events:          env.Events,
		Metrics:         metrics,
		MonitorInterval: o.MonitorInterval,
		ListInterval:    o.ListInterval,
		MaxCalls:        o.MaxCalls,
		Workers:         o.Workers,
		Retry:           o.Retry,
		Timeout:         o.CSI.Timeout,
		KubeTimeout:     o.KubeTimeout,
		WatchNodes:      o.WatchNodes,
	}
	return sidecar.Work{
		Check:         check,
		NewController: func() sidecar.Controller { return controller.New(config) },
		DriverChanged: func(context.Context, *csiclient.Info) error { return check() },
	}, nil
}
