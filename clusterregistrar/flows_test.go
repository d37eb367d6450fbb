package clusterregistrar

import (
	"context"
	"flag"
	"fmt"
	"testing"

	"github.com/longshore-csi/longshore/csikit/kube"
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
		return o.run(ctx, func(config *sidecar.Config) {
			inMemory(env.Kube, "host-1")(config)
			config.CSI.Conn = env.Conn
		})
	})
}

// inMemory has a registrar use an API server in memory.
func inMemory(client kube.Client, host string) func(*sidecar.Config) {
	return func(config *sidecar.Config) { config.Client, config.Host = client, host }
}
