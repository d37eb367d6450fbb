// Command csi-node-driver-registrar registers a CSI driver with its node.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/version"
	"github.com/longshore-csi/longshore/registrar"
)

func main() {
	o := registrar.NewOptions()
	o.AddFlags(flag.CommandLine)
	flag.Parse()
	if o.Version {
		fmt.Println("csi-node-driver-registrar", version.Get())
	} else if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "csi-node-driver-registrar:", err)
		os.Exit(1)
	}
}

func run(o registrar.Options) error {
	logger, err := logging.New(o.Logging, os.Stderr)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(klog.NewContext(context.Background(), logger), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return registrar.Run(ctx, o)
}
