package snapshotter

import (
	"context"

	"k8s.io/client-go/rest"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/sidecar"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/snapshotter/internal/controller"
)

// Run takes and deletes the snapshots of the driver behind o.CSI until ctx ends, which is no error. It waits for the driver, then, if
// o.LeaderElection asks for it, for the Lease. Calls that have begun when ctx ends are finished first, within a limit.
//
// It returns an error for options that are not valid, an address that cannot be listened on, a missing
// kubeconfig, and csiclient.ErrConnectionLost if o.ExitOnConnectionLoss is set. An instance that loses the Lease stops what it does, and
// waits for it again. The logger is taken from ctx.
func Run(ctx context.Context, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	return sidecar.Run(ctx, o.sidecar(nil))
}

// sidecar returns what makes a sidecar a snapshotter. Without a client of snapshots, one is made with the connection to the API server.
func (o *Options) sidecar(snapshots snapshotapi.Client) sidecar.Config {
	return sidecar.Config{
		Name:           "csi-snapshotter",
		Options:        o.Options,
		Warnings:       o.Warnings(),
		CSI:            csiclient.Config{Services: csiclient.ControllerService | csiclient.GroupControllerService},
		EventComponent: controller.Component,
		LeaseName:      controller.LeaseName,
		StateKey:       "contents",
		Features:       func(info *csiclient.Info) any { return controller.FeaturesOf(info) },
		CheckName:      "capabilities",
		CheckMessage:   "No snapshot can be taken or deleted; the capabilities are read again every few seconds",
		Connected: func(cfg *rest.Config) (err error) {
			snapshots, err = snapshotapi.New(cfg)
			return err
		},
		New: func(_ context.Context, env sidecar.Environment) (sidecar.Work, error) {
			return o.work(env, snapshots), nil
		},
	}
}

// work takes and deletes snapshots.
func (o *Options) work(env sidecar.Environment, snapshots snapshotapi.Client) sidecar.Work {
	config := controller.Config{
		Driver:         env.Driver,
		Snapshots:      snapshots,
		CSI:            env.CSI.Controller(),
		GroupCSI:       env.CSI.GroupController(),
		Features:       func() controller.Features { return controller.FeaturesOf(env.CSI.Info()) },
		Events:         env.Events,
		Secrets:        env.Secrets,
		Workers:        o.Workers,
		Retry:          o.Retry,
		Timeout:        o.CSI.Timeout,
		KubeTimeout:    o.KubeTimeout,
		Drain:          env.Drain,
		Resync:         o.Resync,
		SnapshotNames:  controller.Naming{Prefix: o.SnapshotNamePrefix, UUIDLength: o.SnapshotNameUUIDLength},
		GroupNames:     controller.Naming{Prefix: o.GroupSnapshotNamePrefix, UUIDLength: o.GroupSnapshotNameUUIDLength},
		ExtraMetadata:  o.ExtraCreateMetadata,
		Groups:         o.Features.Enabled(GateGroups),
		OrphanInterval: o.OrphanInterval,
		Report:         controller.NewReport(env.Registerer, env.Driver),
		QueueMetrics:   env.QueueMetrics,
		Registerer:     env.Registerer,
	}
	if o.NodeDeployment {
		config.Node = o.NodeName
	}
	return sidecar.Work{
		Check:         func() error { return config.Features().Check(env.Driver) },
		NewController: func() sidecar.Controller { return controller.New(config) },
	}
}
