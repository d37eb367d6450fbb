// Command btrfs is a CSI driver whose volumes are subvolumes of a btrfs file system of their node, with quotas, snapshots, clones, expansion, inline volumes and usage. It is there to be copied, for
// storage that one node has: each node runs the whole driver, --mode=all, and csi-provisioner and csi-snapshotter beside it (provisionOnNodes of the library chart).
package main

import (
	"cmp"
	"context"
	"flag"
	"os"
	"path/filepath"

	"github.com/longshore-csi/longshore/driverkit"
)

func main() {
	os.Exit(driverkit.Main("btrfs", newOptions, run))
}

const (
	driverName = "btrfs.example.com"
	// nodeKey is the topology key that ties a volume to its node.
	nodeKey = "topology.btrfs.example.com/node"
)

// options are those of the kit, and the driver's own.
type options struct {
	driverkit.Options

	root string
}

func newOptions() options {
	o := options{Options: driverkit.NewOptions(driverName)}
	o.TopologyKeys = []string{nodeKey}
	o.Support = driverkit.Support{Clones: true, FSTypes: []string{"btrfs"}}
	return o
}

// AddFlags adds the driver's own flag to those of the kit.
func (o *options) AddFlags(fs *flag.FlagSet) {
	o.Options.AddFlags(fs)
	fs.StringVar(&o.root, "root", o.root, "`directory` of a btrfs file system with quotas; default: volumes in --statedir")
}

func run(ctx context.Context, o options) error {
	o.Topology = driverkit.Segments{nodeKey: o.NodeID}
	s, err := openStore(cmp.Or(o.root, filepath.Join(o.StateDir, "volumes")), o.Topology)
	if err != nil {
		return err
	}
	return driverkit.Serve(ctx, o.Options, s.driver())
}
