package nodeagent

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"

	"github.com/longshore-csi/longshore/csikit/drivername"
	"github.com/longshore-csi/longshore/nodeagent/internal/agent"
)

// Driver is a CSI driver that runs in the process of the agent, without a registrar: many nodes with their drivers are then one process.
type Driver struct {
	// Name of the driver. No registrar of the node registers a driver of that name.
	Name string
	// Conn calls the driver; nil: it listens at Endpoint.
	Conn grpc.ClientConnInterface
	// Endpoint is the socket of a driver without Conn: an absolute path or unix:///path.
	Endpoint string
	// Run serves the driver until ctx is done; nil: it is served already. The driver is registered when it answers. If Run returns before, the agent ends
	// with its error.
	Run func(ctx context.Context) error
}

// drivers are those of the node that no registrar announces.
func (o *Options) drivers() ([]agent.Driver, error) {
	if o.Drivers == nil {
		return nil, nil
	}
	var all []agent.Driver
	var errs []error
	for _, d := range o.Drivers(o.NodeName, o.RootDir) {
		if err := drivername.Validate(d.Name); err != nil {
			errs = append(errs, err)
		}
		if (d.Conn == nil) == (d.Endpoint == "") {
			errs = append(errs, fmt.Errorf("CSI driver %q: must have either a connection or an endpoint", d.Name))
		}
		all = append(all, agent.Driver(d))
	}
	return all, errors.Join(errs...)
}
