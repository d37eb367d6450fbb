// Command csi-attacher attaches and detaches volumes for the CSI driver next to it; see docs/flags.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/attacher"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/version"
)

func main() {
	o := attacher.NewOptions()
	o.AddFlags(flag.CommandLine)
	flag.Parse()
	if o.ShowVersion {
		fmt.Println("csi-attacher", version.Get())
		return
	}
	logger, err := logging.New(o.Logging, os.Stderr)
	if err == nil {
		klog.SetLogger(logger) // client-go's own lines
		ctx, stop := signal.NotifyContext(klog.NewContext(context.Background(), logger), os.Interrupt, syscall.SIGTERM)
		err = attacher.Run(ctx, o)
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "csi-attacher:", err)
		os.Exit(1)
	}
}
