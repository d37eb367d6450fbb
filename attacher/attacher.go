package attacher

import (
	"context"

	"github.com/longshore-csi/longshore/attacher/internal/controller"
	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/migration"
	"github.com/longshore-csi/longshore/csikit/sidecar"
)

// name is the name of the component for the API server and in events.
const name = "csi-attacher"

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
	return sidecar.Run(ctx, o.sidecar())
}

// sidecar returns what makes a sidecar an attacher.
func (o *Options) sidecar() sidecar.Config {
	return sidecar.Config{
		Name:           name,
		Options:        o.Options,
		Warnings:       o.Warnings(),
		CSI:            csiclient.Config{Services: csiclient.ControllerService, MaxLogLength: max(o.MaxGRPCLogLength, 0)},
		Migrated:       migration.Replaces,
		EventComponent: func(string) string { return name },
		LeaseName:      controller.LeaseName,
		StateKey:       "attachments",
		Features:       func(info *csiclient.Info) any { return controller.FeaturesOf(info) },
		CheckName:      "publish-capability",
		New:            o.work,
	}
}

// work attaches and detaches. What must outlast a lost Lease is shared by the controllers.
func (o *Options) work(_ context.Context, env sidecar.Environment) (sidecar.Work, error) {
	config := controller.Config{
		Driver:        env.Driver,
		Kube:          env.Kube,
		CSI:           env.CSI.Controller(),
		Features:      func() controller.Features { return controller.FeaturesOf(env.CSI.Info()) },
		Events:        env.Events,
		Workers:       o.Workers,
		Retry:         o.Retry,
		CSITimeout:    o.CSI.Timeout,
		KubeTimeout:   o.KubeTimeout,
		Drain:         env.Drain,
		NodeRetry:     o.NodeRetry,
		Resync:        o.Resync,
		ReconcileSync: o.ReconcileSync,
		MaxEntries:    int32(o.MaxEntries), //nolint:gosec // Validate has checked the range
		DefaultFSType: o.DefaultFSType,
		Secrets:       env.Secrets,
		ErrorCode:     o.Features.Enabled(GateErrorCode),
		QueueMetrics:  env.QueueMetrics,
		Registerer:    env.Registerer,
	}
	config.Shared = controller.NewShared(config)
	return sidecar.Work{
		Check:         config.Shared.AttachLost,
		NewController: func() sidecar.Controller { return controller.New(config) },
	}, nil
}
