package components

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/longshore-csi/longshore/hostpathdriver"
	"github.com/longshore-csi/longshore/nodeagent"
)

// nodesOptions are those of the node agent, and where the reference drivers of its nodes keep their volumes.
type nodesOptions struct {
	nodeagent.Options
	stateDir string
}

func newNodesOptions() nodesOptions { return nodesOptions{Options: nodeagent.NewOptions()} }

// AddFlags binds the flags to the fields.
func (o *nodesOptions) AddFlags(fs *flag.FlagSet) {
	o.Options.AddFlags(fs)
	fs.StringVar(&o.stateDir, "driver-statedir", "", "`directory` for the volumes and records of the reference driver, which the driver of the controllers shares")
}

// runNodes is the node agent with a reference driver for each node in the same process.
func runNodes(ctx context.Context, o nodesOptions) error {
	o.Drivers = func(node, rootDir string) []nodeagent.Driver {
		d := hostpathdriver.NewOptions()
		socket := filepath.Join(rootDir, "plugins", d.DriverName, "csi.sock")
		d.Mode, d.NodeID, d.StateDir, d.Endpoint = hostpathdriver.ModeNode, node, o.stateDir, "unix://"+socket
		return []nodeagent.Driver{{Name: d.DriverName, Endpoint: d.Endpoint, Run: func(ctx context.Context) error {
			if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil { //nolint:gosec // as a kubelet makes it
				return fmt.Errorf("make the directory of the driver's socket: %w", err)
			}
			return hostpathdriver.Run(ctx, d)
		}}}
	}
	return nodeagent.Run(ctx, o.Options)
}
