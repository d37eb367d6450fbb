package clusterregistrar

import (
	"context"
	"errors"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/clusterregistrar/internal/driverobject"
	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/sidecar"
)

// name is the name of the component for the API server and in events.
const name = driverobject.Manager

// Run keeps the CSIDriver object of the driver behind o.CSI until ctx ends, which is no error. It waits for the driver, then, if
// o.LeaderElection asks for it, for the Lease. If o.DeleteOnExit is set, it deletes the object at the end.
//
// It returns an error for options that are not valid, an address that cannot be listened on, a missing kubeconfig,
// csiclient.ErrConnectionLost if o.ExitOnConnectionLoss is set, and an object that cannot be deleted. The logger is taken from ctx.
func Run(ctx context.Context, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	return o.run(ctx, func(*sidecar.Config) {})
}

// run is Run with changes of the configuration, for tests.
func (o *Options) run(ctx context.Context, change func(*sidecar.Config)) error {
	var environment sidecar.Environment // that of the driver, once it is known
	config := o.sidecar()
	config.New = func(_ context.Context, env sidecar.Environment) (sidecar.Work, error) {
		environment = env
		return o.work(env), nil
	}
	change(&config)
	err := sidecar.Run(ctx, config)
	if !o.DeleteOnExit || ctx.Err() == nil || environment.Kube == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.KubeTimeout)
	defer cancel()
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithName(name))
	return errors.Join(err, driverobject.Remove(ctx, environment.Kube.CSIDrivers(), environment.Driver))
}

// sidecar returns what makes a sidecar a registrar, but its work.
func (o *Options) sidecar() sidecar.Config {
	return sidecar.Config{
		Name:           name,
		Options:        o.Options,
		Warnings:       o.Warnings(),
		CSI:            csiclient.Config{Services: csiclient.ControllerService},
		EventComponent: func(string) string { return name },
		LeaseName:      driverobject.LeaseName,
		StateKey:       "csidriver",
		Features:       func(info *csiclient.Info) any { return driverobject.FeaturesOf(info) },
		CheckName:      "csidriver",
		CheckMessage:   "The CSIDriver object is not written",
	}
}

// work keeps the object.
func (o *Options) work(env sidecar.Environment) sidecar.Work {
	config := driverobject.Config{Environment: env, Flags: o.spec(), Retry: o.Retry, CSITimeout: o.CSI.Timeout, KubeTimeout: o.KubeTimeout}
	shared := driverobject.NewShared(config)
	return sidecar.Work{Check: shared.Check, NewController: func() sidecar.Controller { return driverobject.New(shared) }}
}
