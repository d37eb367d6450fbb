// Command csi-provisioner makes volumes for PersistentVolumeClaims by the CSI driver next to it.
// Embed package provisioner rather than this thin shell of it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/version"
	"github.com/longshore-csi/longshore/provisioner"
)

func main() {
	o := provisioner.NewOptions()
	o.AddFlags(flag.CommandLine)
	flag.Parse()
	if o.ShowVersion {
		fmt.Println("csi-provisioner", version.Get())
		return
	}
	logger, err := logging.New(o.Logging, os.Stderr)
	if err = errors.Join(err, o.Validate()); err == nil {
		klog.SetLogger(logger)
		ctx, stop := signal.NotifyContext(klog.NewContext(context.Background(), logger), syscall.SIGINT, syscall.SIGTERM)
		err = provisioner.Run(ctx, o)
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "csi-provisioner:", err)
		os.Exit(1)
	}
}
