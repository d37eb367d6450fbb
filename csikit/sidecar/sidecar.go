// Package sidecar holds what a component is made of that stands next to a CSI driver and works on API objects for it, such as an
// attacher or a resizer: the connections to the API server and to the driver, the HTTP listener with metrics, readiness and state, the
// event recorder, leader election, and a controller for each time that the instance leads.
//
//	err := sidecar.Run(ctx, sidecar.Config{Name: "csi-attacher", Options: o.Options, LeaseName: leaseName, New: newWork, ...})
//
// Run waits for the driver and follows it: a driver that comes back under the same name wakes the controller, another name is an error.
// When ctx ends, the controller finishes the operations in progress; then the last events are written. Metrics are served until the end.
//
// Do not use it for components whose work depends on the node (csi-node-agent), or that have no driver, or no API server.
package sidecar

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/events"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/kubemetrics"
	"github.com/longshore-csi/longshore/csikit/metrics"
	"github.com/longshore-csi/longshore/csikit/procmetrics"
	"github.com/longshore-csi/longshore/csikit/version"
)

// ErrDriverChanged is returned by Run when another driver answers at the same address: the driver's name is in the Lease, and in objects.
var ErrDriverChanged = errors.New("another driver has taken the socket")

// Controller works on the API objects of one driver.
type Controller interface {
	// Run works until ctx ends, then finishes the operations in progress. It is called once, or never if this instance does not lead.
	Run(ctx context.Context) error
	// Synced returns the error of kube.CheckSynced while Run waits for first lists. It is nil before Run is called.
	Synced() error
	// DriverChanged retries all objects that wait. It is called, also before Run, when the driver has come back or announces other
	// capabilities.
	DriverChanged(ctx context.Context)
	// State returns what /debug/state shows, as JSON; nil: nothing.
	State() any
}

// Environment has the connections, recorders and registries of a process, which all its controllers share.
type Environment struct {
	// Driver is the name of the driver.
	Driver string
	// CSI is the connection to the driver, whose Info is known.
	CSI *csiclient.Client
	// Kube is the connection to the API server.
	Kube kube.Client
	// Secrets reads the secrets that Options.Secrets allows.
	Secrets *kube.SecretCache
	// Events records events. Those recorded before Controller.Run returns are written.
	Events events.Recorder
	// QueueMetrics measures work queues.
	QueueMetrics workqueue.MetricsProvider
	// Registerer takes metrics of the component's own.
	Registerer prometheus.Registerer
}

// Work makes the controllers of a component for its driver.
type Work struct {
	// Check returns an error while the driver announces too little for the component to work. The capabilities are read again every 5
	// seconds then: a driver that answered while it was starting keeps its connection, so that nothing else would read them again.
	Check func() error
	// NewController makes a controller. There is one after the other: the next takes over when Run of the last has returned.
	NewController func() Controller
}

// Config of a sidecar. All fields without a default are required.
type Config struct {
	// Name of the component, such as csi-attacher: in the log, in user agents and in messages.
	Name string
	// Options has the values of the shared flags. They must be valid.
	Options Options
	// Warnings are logged first.
	Warnings []string
	// CSI has in Services the capabilities to read. Address, ExitOnLoss and Metrics are set by Run.
	CSI csiclient.Config
	// Migrated reports whether a driver replaces an in-tree volume plugin: then its calls are measured with the label migrated.
	// nil: no driver does.
	Migrated func(driver string) bool
	// EventComponent returns the name under which users see the events of a driver's component.
	EventComponent func(driver string) string
	// LeaseName returns the name of the Lease that the instances for a driver compete for.
	LeaseName func(driver string) string
	// StateKey is the key of Controller.State in the JSON of /debug/state.
	StateKey string
	// Features returns those capabilities that concern the component, as a comparable value, for the log and to notice changes.
	Features func(*csiclient.Info) any
	// CheckName is the name of Work.Check among the checks of /readyz.
	CheckName string
	// CheckMessage is logged with the error of Work.Check, each time that capabilities were read. Empty: the controller logs it.
	CheckMessage string
	// ReadyPath is another path of /readyz; empty: none.
	ReadyPath string
	// NoMetrics: the HTTP endpoint does not serve metrics.
	NoMetrics bool
	// New is called once, when the driver is known.
	New func(Environment) Work

	// Connected, which may be nil, is called with what reaches the API server as Options.Kube says, to make clients of other kinds than
	// those of Client. It is not called if Client is set.
	Connected func(*rest.Config) error
	// Client is the connection to the API server. Default: as Options.Kube says.
	Client kube.Client
	// Host identifies this instance in the Lease and in events. Default: see leader.Config and events.Config.
	Host string
}

// Run works until ctx ends, which is no error. It waits for the driver, then, if Options.LeaderElection asks for it, for the Lease. An
// instance that loses the Lease stops what it does, and waits for it again. The logger is taken from ctx.
//
// It returns an error for an address that cannot be listened on, a missing kubeconfig, a controller that fails, ErrDriverChanged, and
// csiclient.ErrConnectionLost if Options.ExitOnConnectionLoss is set.
func Run(ctx context.Context, cfg Config) error {
	for _, warning := range cfg.Warnings {
		klog.FromContext(ctx).Info(warning)
	}
	c := &component{Config: cfg, registry: procmetrics.NewRegistry()}
	if err := c.connect(); err != nil {
		return err
	}
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithName(cfg.Name))
	return errors.Join(c.run(ctx), c.driver.Close())
}

// connect prepares the connections.
func (c *component) connect() (err error) {
	if c.Client == nil {
		cfg, err := kube.Config(c.Options.Kube, c.Name+"/"+version.Get().Version)
		if err != nil {
			return err
		}
		cfg.Wrap(kubemetrics.NewRest(c.registry).Wrap)
		if c.Client, err = kube.New(cfg); err != nil {
			return err
		}
		if c.Connected != nil {
			if err := c.Connected(cfg); err != nil {
				return err
			}
		}
	}
	var options []metrics.Option
	if c.Migrated != nil {
		options = append(options, metrics.ForMigration(c.Migrated))
	}
	c.CSI.Address, c.CSI.ExitOnLoss = c.Options.CSI.Address, c.Options.ExitOnConnectionLoss
	c.CSI.Metrics = metrics.NewSidecarCSI(c.registry, options...)
	c.driver, err = csiclient.New(c.CSI)
	return err
}
