// Command csi-node-agent mounts CSI volumes for the pods of a node that has no kubelet; see
// docs/flags.md.
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
	"github.com/longshore-csi/longshore/kubeletplugin"
)

func main() {
	o := kubeletplugin.NewOptions()
	o.AddFlags(flag.CommandLine)
	flag.Parse()
	if o.ShowVersion {
		fmt.Println("csi-node-agent", version.Get())
	} else if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "csi-node-agent:", err)
		os.Exit(1)
	}
}

func run(o kubeletplugin.Options) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	logger, err := logging.New(o.Logging, os.Stderr)
	if err != nil {
		return err
	}
	klog.SetLogger(logger) // client-go's own lines
	return kubeletplugin.Run(klog.NewContext(ctx, logger), o)
}
