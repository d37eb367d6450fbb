package attacher

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/metrics"
	"github.com/longshore-csi/longshore/csikit/reconciletest"
)

// TestFlows plays the transcripts. The arguments of "start" are flags.
func TestFlows(t *testing.T) {
	reconciletest.Run(t, "testdata/flows", func(ctx context.Context, env *reconciletest.Env) error {
		env.Cluster.SetLatency("volumeattachments", time.Nanosecond) // after PersistentVolumes, which are written at the same time
		o := NewOptions()
		fs := flag.NewFlagSet("start", flag.ContinueOnError)
		o.AddFlags(fs)
		for name, value := range env.Args {
			if err := fs.Set(name, value); err != nil {
				return fmt.Errorf("--%s=%s: %w", name, value, err)
			}
		}
		driver, err := csiclient.New(csiclient.Config{Conn: env.Conn, Services: csiclient.ControllerService})
		if err != nil {
			return err
		}
		c := &component{options: o, kube: env.Kube, driver: driver, registry: metrics.NewRegistry(), host: "host-1"}
		return c.run(ctx)
	})
}
