package resizer

import (
	"context"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/migration"
	"github.com/longshore-csi/longshore/csikit/sidecar"
	"github.com/longshore-csi/longshore/resizer/internal/controller"
)

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
	return sidecar.Run(ctx, o.sidecar())
}

// sidecar returns what makes a sidecar a resizer.
func (o *Options) sidecar() sidecar.Config {
	return sidecar.Config{
		Name:           "csi-resizer",
		Options:        o.Options,
		Warnings:       o.Warnings(),
		CSI:            csiclient.Config{Services: csiclient.ControllerService | csiclient.NodeService, SkipNode: controller.Expands},
		Migrated:       migration.Replaces,
		EventComponent: controller.Component,
		LeaseName:      controller.LeaseName,
		StateKey:       "claims",
		Features:       func(info *csiclient.Info) any { return controller.FeaturesOf(info) },
		CheckName:      "capabilities",
		CheckMessage:   "There is nothing to do; the capabilities are read again every few seconds",
		New:            o.work,
	}
}

// work expands and modifies.
func (o *Options) work(_ context.Context, env sidecar.Environment) (sidecar.Work, error) {
	config := controller.Config{
		Driver:            env.Driver,
		Kube:              env.Kube,
		CSI:               env.CSI.Controller(),
		Features:          controller.RememberFeatures(env.CSI.Info),
		Events:            env.Events,
		Workers:           o.Workers,
		Retry:             o.Retry,
		ResizeTimeout:     o.resizeTimeout(),
		ModifyTimeout:     o.modifyTimeout(),
		KubeTimeout:       o.KubeTimeout,
		Drain:             env.Drain,
		Resync:            o.Resync,
		WaitUntilUnused:   o.WaitUntilUnused,
		AttributesClasses: o.Features.Enabled(GateAttributesClass),
		ExtraMetadata:     o.ExtraModifyMetadata,
		AnnotatePreResize: o.Features.Enabled(GateAnnotate),
		Secrets:           env.Secrets,
		QueueMetrics:      env.QueueMetrics,
		Registerer:        env.Registerer,
	}
	return sidecar.Work{
		Check:         func() error { return config.Features().Check(env.Driver) },
		NewController: func() sidecar.Controller { return controller.New(config) },
	}, nil
}
