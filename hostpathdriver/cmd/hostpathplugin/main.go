// Command hostpathplugin is the hostpath CSI driver.
package main

import (
	"context"
	"os"

	"github.com/longshore-csi/longshore/csikit/command"
	"github.com/longshore-csi/longshore/csikit/tracing"
	"github.com/longshore-csi/longshore/hostpathdriver"
)

func main() {
	os.Exit(newCommand().Main())
}

func newCommand() command.Component[hostpathdriver.Options, *hostpathdriver.Options] {
	return command.New("hostpathplugin", hostpathdriver.NewOptions, run)
}

// run traces calls where the environment says so.
func run(ctx context.Context, o hostpathdriver.Options) error {
	o.CallLog = os.Stdout
	return tracing.Run(ctx, "hostpathplugin", func(ctx context.Context, on bool) error {
		o.Tracing = o.Tracing || on
		return hostpathdriver.Run(ctx, o)
	})
}
