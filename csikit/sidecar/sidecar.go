// Package sidecar is package component for those that stand next to a CSI driver and work on API objects for it, such as an attacher or a resizer: it adds the
// connection to the driver, whose name and capabilities decide about the work.
//
//	err := sidecar.Run(ctx, sidecar.Config{Name: "csi-attacher", Options: o.Options, LeaseName: leaseName, New: newWork, ...})
//
// Run waits for the driver and follows it: a driver that comes back under the same name wakes the controller, another name is an error.
//
// Do not use it for csi-node-agent, which serves many drivers, or for components that have no driver, or no API server.
package sidecar

import (
	"context"
	"errors"

	"k8s.io/client-go/rest"

	"github.com/longshore-csi/longshore/csikit/component"
	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/procmetrics"
)

// ErrDriverChanged is returned by Run when another driver answers at the same address: the driver's name is in the Lease, and in objects.
var ErrDriverChanged = errors.New("another driver has taken the socket")

// Controller works on the API objects of one driver. It may be a component.Preparer.
type Controller interface {
	component.Controller
	// DriverChanged retries all objects that wait. It is called, also before Run, when the driver has come back or announces other
	// capabilities.
	DriverChanged(ctx context.Context)
}

// Environment has the connections, recorders and registries of a process, which all its controllers share.
type Environment struct {
	component.Environment
	// Driver is the name of the driver.
	Driver string
	// CSI is the connection to the driver, whose Info is known.
	CSI *csiclient.Client
	// Secrets reads the secrets that Options.Secrets allows.
	Secrets *kube.SecretCache
}

// Work makes the controllers of a component for its driver.
type Work struct {
	// Check returns an error while the driver announces too little for the component to work. The capabilities are read again every 5
	// seconds then: a driver that answered while it was starting keeps its connection, so that nothing else would read them again.
	Check func() error
	// NewController makes a controller. There is one after the other: the next takes over when Run of the last has returned.
	NewController func() Controller
	// DriverChanged is called before that of the controller, and may wait until ctx ends. Its error ends Run. nil: nothing is called.
	DriverChanged func(ctx context.Context, now *csiclient.Info) error
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
	// LeaseName returns the name of the Lease that the instances for a driver compete for. nil: there is no election.
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
	// New is called once, when the driver is known. It may wait for what the component needs besides until ctx ends; its error ends Run.
	New func(ctx context.Context, env Environment) (Work, error)

	// Connected, Client and Host are those of component.Config.
	Connected func(*rest.Config) error
	Client    kube.Client
	Host      string
}

// Run works until ctx ends, which is no error. It waits for the driver, then works as component.Run does.
//
// Besides the errors of that, it returns ErrDriverChanged, and csiclient.ErrConnectionLost if Options.ExitOnConnectionLoss is set.
func Run(ctx context.Context, cfg Config) error {
	c, registry := &instance{Config: cfg}, procmetrics.NewRegistry()
	if err := c.connect(registry); err != nil {
		return err
	}
	return errors.Join(component.Run(ctx, c.component(registry)), c.driver.Close())
}
