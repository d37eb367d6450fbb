package healthmonitor

import (
	"context"
	"flag"
	"fmt"
	"testing"

	"github.com/longshore-csi/longshore/csikit/sidecar"
	"github.com/longshore-csi/longshore/csikittest/reconciletest"
)

// TestFlows plays the transcripts. The arguments of "start" are flags.
func TestFlows(t *testing.T) {
	reconciletest.Run(t, "testdata/flows", func(ctx context.Context, env *reconciletest.Env) error {
		o := NewOptions()
		fs := flag.NewFlagSet("start", flag.ContinueOnError)
		o.AddFlags(fs)
		for name, value := range env.Args {
			if err := fs.Set(name, value); err != nil {
				return fmt.Errorf("--%s=%s: %w", name, value, err)
			}
		}
		config := inMemory(o, env.Kube, "host-1")
		config.CSI.Conn = env.Conn
		return sidecar.Run(ctx, config)
	})
}
