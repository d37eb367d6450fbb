// Command attached-block is a CSI driver for a storage array whose volumes are block devices that are attached to nodes: with snapshots, clones,
// expansion, topology of two keys, secrets and limits. It is there to be copied: package array, a mock, is what a vendor replaces by the client library of
// the array; this package is the driver, and its comments say what belongs where.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/examples/attached-block/array"
)

func main() {
	os.Exit(driverkit.Main("attached-block", newOptions, run))
}

const (
	driverName = "attached-block.example.com"
	// zoneKey and rackKey are the topology keys: a volume is reachable from the rack in which its pool is. Each node says with --topology where it is.
	zoneKey = "topology.attached-block.example.com/zone"
	rackKey = "topology.attached-block.example.com/rack"
)

// options are those of the kit, and the driver's own.
type options struct {
	driverkit.Options

	// address, user and passwordFile are how the driver calls the array where a request has no secrets: CSI has none for ListVolumes and others, and
	// where all classes have the same account, they need none.
	address, user, passwordFile string
}

func newOptions() options {
	o := options{Options: driverkit.NewOptions(driverName), address: "http://127.0.0.1:8080", user: "csi"}
	o.TopologyKeys = []string{zoneKey, rackKey}
	o.MaxVolumes = 16 // The array's own limit, so that the scheduler keeps to it.
	// What the array can do: raw block devices, several nodes at once, and volumes made of volumes. Without FSTypes the kit offers what it can make on the node.
	o.Support = driverkit.Support{Block: true, MultiNode: true, Clones: true}
	return o
}

// AddFlags adds the driver's own flags to those of the kit.
func (o *options) AddFlags(fs *flag.FlagSet) {
	o.Options.AddFlags(fs)
	fs.StringVar(&o.address, "array", o.address, "`address` of the array's API: http://host:port")
	fs.StringVar(&o.user, "user", o.user, "`name` of the array's account for calls without secrets")
	fs.StringVar(&o.passwordFile, "password-file", o.passwordFile, "`file` with the password of --user, such as a mounted Secret")
}

func run(ctx context.Context, o options) error {
	password, err := os.ReadFile(o.passwordFile)
	if err != nil {
		return fmt.Errorf("--password-file: %w", err)
	}
	client := &array.Client{Address: o.address, User: o.user, Password: strings.TrimSpace(string(password))}
	return driverkit.Serve(ctx, o.Options, (&disks{array: client, rescan: rescan}).driver())
}
