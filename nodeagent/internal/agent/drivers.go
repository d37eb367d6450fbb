package agent

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
)

// visibleTries is the number of failed tries to register a driver of this process, within three seconds, from which on they are logged.
const visibleTries = 6

// Driver is a CSI driver that runs in this process, without a registrar.
type Driver struct {
	// Name of the driver; no registrar registers a driver of that name.
	Name string
	// Conn calls the driver; nil: it listens at Endpoint.
	Conn grpc.ClientConnInterface
	// Endpoint is the socket of a driver without Conn: an absolute path or unix:///path.
	Endpoint string
	// Run serves the driver until ctx is done, and may take as long as it needs to begin; nil: it is served already.
	Run func(ctx context.Context) error
}

// endpoint is where the driver is called: a name that dial knows, if it is no socket.
func (d *Driver) endpoint() string {
	if d.Conn != nil {
		return "in-process:" + d.Name
	}
	return d.Endpoint
}

// dial connects to a driver of this process that has no socket, or as the configuration says.
func (a *Agent) dial(endpoint string) (grpc.ClientConnInterface, error) {
	for i := range a.cfg.Drivers {
		if d := &a.cfg.Drivers[i]; d.Conn != nil && d.endpoint() == endpoint {
			return d.Conn, nil
		}
	}
	if a.cfg.DialDriver != nil {
		return a.cfg.DialDriver(endpoint)
	}
	return nil, nil
}

// serveDrivers runs the drivers of this process.
func (a *Agent) serveDrivers(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for i := range a.cfg.Drivers {
		d := &a.cfg.Drivers[i]
		if d.Run == nil {
			continue
		}
		g.Go(func() error {
			if err := d.Run(ctx); err != nil || ctx.Err() == nil {
				return fmt.Errorf("CSI driver %q of this process has ended: %w", d.Name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// registerDrivers registers the drivers of this process, each as soon as it answers.
func (a *Agent) registerDrivers(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for i := range a.cfg.Drivers {
		d := &a.cfg.Drivers[i]
		g.Go(func() error {
			a.register(ctx, d)
			return nil
		})
	}
	return g.Wait()
}

// register tries until the driver is registered, or ctx is done. A driver that Run serves may not listen yet at first.
func (a *Agent) register(ctx context.Context, d *Driver) {
	tries := 0
	delay := wait.Backoff{Duration: 50 * time.Millisecond, Cap: 2 * time.Minute, Steps: 12, Factor: 2, Jitter: 0.1}.DelayFunc()
	_ = delay.Until(ctx, true, true, func(ctx context.Context) (bool, error) { // an error says that ctx is done
		err := a.plugin.Register(ctx, d.Name, d.endpoint())
		if tries++; err != nil && ctx.Err() == nil && tries >= visibleTries {
			klog.FromContext(ctx).Error(err, "Registering a CSI driver of this process, trying again", logging.KeyDriver, d.Name)
		}
		return err == nil, nil
	})
}
