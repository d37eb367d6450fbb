// Command devcluster runs a Kubernetes cluster for CSI drivers as plain processes.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/longshore-csi/longshore/devcluster/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := cli.Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(cli.ExitCode(err))
}
