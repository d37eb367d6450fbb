package snapshotcontroller

import (
	"context"

	"k8s.io/client-go/rest"

	"github.com/longshore-csi/longshore/csikit/component"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/snapshotcontroller/internal/controller"
)

// Run works until ctx ends, which is no error. It waits until the kinds of snapshots are installed, then, if o.LeaderElection asks for it,
// for the Lease. Writes that have begun when ctx ends are finished first.
//
// It returns an error for options that are not valid, an address that cannot be listened on, and a missing kubeconfig. An instance that
// loses the Lease stops what it does, and waits for it again. The logger is taken from ctx.
func Run(ctx context.Context, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	return component.Run(ctx, o.component(connections{}))
}

// connections are those that tests replace; the zero value is made as the options say.
type connections struct {
	kube      kube.Client
	snapshots snapshotapi.Client
	host      string
}

// component returns what makes a component the snapshot controller.
func (o *Options) component(with connections) component.Config {
	kinds := &controller.Kinds{}
	return component.Config{
		Name:     "snapshot-controller",
		Options:  o.Options,
		Warnings: o.Warnings(),
		StateKey: "snapshots",
		Checks:   map[string]func(context.Context) error{"crds": func(context.Context) error { return kinds.Check() }},
		Names: func(ctx context.Context) (component.Names, error) {
			return component.Names{Events: controller.Component, Lease: controller.LeaseName}, kinds.Wait(ctx, with.snapshots, o.CRDInterval, o.KubeTimeout)
		},
		New: func(_ context.Context, env component.Environment) (component.Work, error) {
			config := o.controller(env, with.snapshots)
			return component.Work{NewController: func() component.Controller { return controller.New(config) }}, nil
		},
		Connected: func(cfg *rest.Config) (err error) {
			with.snapshots, err = snapshotapi.New(cfg)
			return err
		},
		Client: with.kube,
		Host:   with.host,
	}
}

// controller configures the controllers.
func (o *Options) controller(env component.Environment, snapshots snapshotapi.Client) controller.Config {
	return controller.Config{
		Kube:             env.Kube,
		Snapshots:        snapshots,
		Events:           env.Events,
		Workers:          o.Workers,
		Retry:            o.Retry,
		KubeTimeout:      o.KubeTimeout,
		Drain:            env.Drain,
		Resync:           o.Resync,
		SourceVolumeMode: o.PreventModeConversion,
		Distributed:      o.Distributed,
		Groups:           o.Features.Enabled(GateGroups),
		CRDInterval:      o.CRDInterval,
		Operations:       controller.NewOperations(env.Registerer),
		Report:           controller.NewReport(env.Registerer),
		QueueMetrics:     env.QueueMetrics,
		Registerer:       env.Registerer,
	}
}
