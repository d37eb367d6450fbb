// Command hostpathplugin is the hostpath CSI driver.
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
	"github.com/longshore-csi/longshore/hostpathdriver"
)

func main() {
	options, logs := hostpathdriver.NewOptions(), logging.NewOptions()
	options.AddFlags(flag.CommandLine)
	logs.AddFlags(flag.CommandLine)
	showVersion := flag.Bool("version", false, "print the version and exit")
	flag.Parse()
	if *showVersion {
		fmt.Println("hostpathplugin", version.Get())
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	logger, err := logging.New(logs, os.Stderr)
	if err == nil {
		err = hostpathdriver.Run(klog.NewContext(ctx, logger), options)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "hostpathplugin:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to stop
	}
}
