package agent

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
)

// Tries to register a static driver, which may start after the agent.
const (
	staticStart = 500 * time.Millisecond
	staticMax   = 30 * time.Second
)

// registerStatic registers a driver that no registrar announces, and tries it until it succeeds (seed 000).
func (a *Agent) registerStatic(ctx context.Context, name, endpoint string) error {
	for pause := staticStart; ; pause = min(2*pause, staticMax) {
		err := a.plugin.Register(ctx, name, endpoint)
		if err == nil {
			return nil
		}
		klog.FromContext(ctx).Error(err, "Static driver is not registered, retrying", logging.KeyDriver, name)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}
