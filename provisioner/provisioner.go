package provisioner

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/leader"
	"github.com/longshore-csi/longshore/csikit/migration"
	"github.com/longshore-csi/longshore/csikit/sidecar"
	"github.com/longshore-csi/longshore/provisioner/internal/capabilities"
	"github.com/longshore-csi/longshore/provisioner/internal/capacity"
	"github.com/longshore-csi/longshore/provisioner/internal/claim"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapi"
	"github.com/longshore-csi/longshore/topology"
)

// Run provisions for the driver at o.CSI.Address until ctx ends, which is no error. It waits for the driver, then, if o.LeaderElection asks for it, for the
// Lease. Calls that run when ctx ends may end within a limit, and volumes in progress are finished or deleted.
//
// It returns an error for options that are not valid, an address that cannot be listened on, a missing kubeconfig, a driver that --node-deployment cannot be
// used with, and csiclient.ErrConnectionLost if o.ExitOnConnectionLoss is set. An instance that loses the Lease stops what it does, and waits for it again. The
// logger is taken from ctx.
func Run(ctx context.Context, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	return sidecar.Run(ctx, o.sidecar(connections{}))
}

// connections are those that tests replace; the zero value is made as the options say.
type connections struct {
	// kube is the API server, and host the name of this instance among those that compete for the Lease.
	kube kubeapi.Client
	host string
	// identity identifies this process in what it makes.
	identity string
}

// sidecar returns what makes a sidecar a provisioner.
func (o *Options) sidecar(with connections) sidecar.Config {
	p := &provisioner{options: o, kube: with.kube, identity: cmp.Or(with.identity, fmt.Sprintf("%d-%d", time.Now().UnixMilli(), rand.IntN(10000)))} //nolint:gosec,mnd // no secret
	config := sidecar.Config{
		Name:           "csi-provisioner",
		Options:        o.Options,
		Warnings:       o.Warnings(),
		CSI:            csiclient.Config{Services: csiclient.ControllerService},
		Migrated:       migration.Replaces,
		EventComponent: func(driver string) string { return driver },
		LeaseName:      leader.SanitizeName,
		StateKey:       "controller",
		Features: func(info *csiclient.Info) any {
			return capabilities.Of(info, capabilities.Features{Topology: true, AttributesClass: true})
		},
		CheckName:    "capabilities",
		CheckMessage: "No volume can be made or deleted; the capabilities are read again every few seconds",
		Connected:    p.connected,
		New:          p.work,
		Host:         with.host,
	}
	if with.kube != nil {
		config.Client = with.kube
	}
	if o.Node.Enabled {
		config.Host = o.Node.Name
	}
	return config
}

// provisioner is what the sessions of a process share.
type provisioner struct {
	options *Options
	kube    kubeapi.Client
	// identity identifies this process in what it makes.
	identity string
	env      sidecar.Environment
	// journal has the volumes in progress.
	journal *journal.Journal
	metrics *claim.Metrics
	// counts measures the CSIStorageCapacity objects, and owner owns them.
	counts *capacity.Metrics
	owner  *metav1.OwnerReference
	// attachDenied logs once that the CSIDriver object may not be read.
	attachDenied sync.Once

	// mu guards what follows.
	mu sync.Mutex
	// noAttributes says that the API server does not serve VolumeAttributesClasses.
	noAttributes bool
	// skipAttach says that the CSIDriver object has attachRequired false.
	skipAttach bool
	// segment is that of the node, for an instance that provisions for one node.
	segment topology.Segment
}

// connected makes the client of the kinds that only the provisioner uses.
func (p *provisioner) connected(config *rest.Config) error {
	client, err := kube.New(config)
	if err != nil {
		return err
	}
	p.kube, err = kubeapi.New(kubeapi.Config{REST: config, Others: client, CapacityQPS: p.options.Capacity.QPS, CapacityBurst: p.options.Capacity.Burst})
	return err
}

// work makes the sessions for a driver.
func (p *provisioner) work(ctx context.Context, env sidecar.Environment) (sidecar.Work, error) {
	p.env, p.journal = env, journal.New()
	p.metrics, p.counts = claim.NewMetrics(env.Registerer), capacity.NewMetrics()
	claim.RegisterUnderWay(env.Registerer, p.journal)
	if p.options.Capacity.Enabled {
		env.Registerer.MustRegister(p.counts)
	}
	return sidecar.Work{
		Check:         func() error { return capabilities.Check(env.CSI.Info()) },
		DriverChanged: p.driverChanged,
		NewController: func() sidecar.Controller { return &session{provisioner: p} },
	}, p.locate(ctx, env.CSI.Info())
}

// driverChanged finds out again what depends on the driver.
func (p *provisioner) driverChanged(ctx context.Context, info *csiclient.Info) error {
	if err := p.locate(ctx, info); err != nil {
		return err
	}
	p.findAttach(ctx, info)
	return nil
}
