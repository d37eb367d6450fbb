// Command nfs is a CSI driver for the exports of NFS servers: each volume is a directory of an export, and workloads on any number of nodes share it. It is
// there to be copied, for storage that is mounted over a network and has no devices.
package main

import (
	"context"
	"flag"
	"os"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/mount"
)

func main() {
	os.Exit(driverkit.Main("nfs", newOptions, run))
}

const driverName = "nfs.example.com"

// options are those of the kit, and the driver's own.
type options struct {
	driverkit.Options

	exports string
}

func newOptions() options {
	o := options{Options: driverkit.NewOptions(driverName), exports: "/run/" + driverName}
	// Any node can mount an export, so that there is no topology. A volume has no device, and no other file system than the server's. Each path of a workload is a
	// mount of its own; the kernel has one connection for all.
	o.Support = driverkit.Support{MultiNode: true, PublishOnly: true, FSTypes: []string{"nfs"}}
	return o
}

// AddFlags adds the driver's own flag to those of the kit.
func (o *options) AddFlags(fs *flag.FlagSet) {
	o.Options.AddFlags(fs)
	fs.StringVar(&o.exports, "exports", o.exports, "`directory` below which the controller mounts exports, to make and delete directories in them")
}

func run(ctx context.Context, o options) error {
	s := &shares{exports: o.exports, mounts: mount.Kernel{}, mounter: program{}}
	return driverkit.Serve(ctx, o.Options, driverkit.Driver{Provisioner: s, Stager: s})
}
