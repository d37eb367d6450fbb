// Package drivername asks a CSI driver for its name and for what it says about
// its node, again each time that the connection was lost: a driver that comes
// back may be another one, or be set up in another way.
//
// It asks GetPluginInfo, and NodeGetInfo once per connection. A registrar does
// not judge whether the driver is ready, so it does not probe; what else a
// driver can do is for those who use it.
package drivername

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/logging"
)

const (
	// defaultPoll is the pause before a driver that did not answer is asked again.
	defaultPoll = time.Second
	// logEvery is how often the log says that the driver is waited for.
	logEvery = 30 * time.Second
)

// Config says how to reach the driver.
type Config struct {
	// Address of the driver: an absolute path, unix:///path or tcp://host:port.
	Address string
	// Timeout bounds each question.
	Timeout time.Duration
	// Poll is the pause before a driver that did not answer is asked again.
	// Default 1 s.
	Poll time.Duration
}

// Identity is what a registration with a kubelet rests on.
type Identity struct {
	// Name of the driver.
	Name string
	// Generation grows with each change of the name, and of the node's ID or
	// topology by NodeGetInfo. It tells that there was a change also to those
	// who have missed some.
	Generation int
}

// Watcher follows the identity of one driver.
type Watcher struct {
	cfg    Config
	conn   *grpc.ClientConn
	client *csiclient.Client
}

// New checks cfg. No driver need be there yet.
func New(cfg Config) (*Watcher, error) {
	if cfg.Poll == 0 {
		cfg.Poll = defaultPoll
	}
	conn, err := csiclient.Dial(cfg.Address, nil)
	if err != nil {
		return nil, err
	}
	client, err := csiclient.New(csiclient.Config{Address: cfg.Address, Conn: conn, Timeout: cfg.Timeout})
	if err != nil {
		_ = conn.Close() // it was never used
		return nil, fmt.Errorf("connect to CSI driver at %q: %w", cfg.Address, err)
	}
	return &Watcher{cfg: cfg, conn: conn, client: client}, nil
}

// Close ends the connection. It is not needed after Run.
func (w *Watcher) Close() error { return w.conn.Close() }

// Run calls told with the driver's identity when its name is known, and whenever
// the identity has changed. It returns when ctx ends, and closes the connection.
func (w *Watcher) Run(ctx context.Context, told func(Identity)) {
	defer func() { _ = w.Close() }() // nothing is waiting for it
	logger := klog.FromContext(ctx)
	var known Identity
	var node string // what the driver of that name has told last; empty: nothing yet
	for {
		name, ok := w.ask(ctx)
		if !ok {
			return
		}
		if name != known.Name {
			logger.Info("CSI driver has told its name", logging.KeyAddress, w.cfg.Address, logging.KeyDriver, name)
			known, node = Identity{Name: name, Generation: known.Generation + 1}, ""
			told(known)
		}
		if now, ok := w.askNode(ctx); ok {
			if node != "" && now != node {
				logger.Info("CSI driver has told another node ID or topology", logging.KeyDriver, name, logging.KeyNode, now)
				known.Generation++
				told(known)
			}
			node = now
		}
		if !w.conn.WaitForStateChange(ctx, connectivity.Ready) {
			return
		}
		logger.Info("Connection to the CSI driver is lost", logging.KeyAddress, w.cfg.Address, logging.KeyDriver, name)
	}
}

// ask returns the driver's name, however long it takes, or false when ctx ends.
func (w *Watcher) ask(ctx context.Context) (string, bool) {
	var logged time.Time
	for {
		name, err := w.client.DriverName(ctx)
		if err == nil {
			return name, true
		}
		if ctx.Err() != nil {
			return "", false
		}
		if now := time.Now(); now.Sub(logged) >= logEvery {
			logged = now
			klog.FromContext(ctx).Info("Waiting for the CSI driver", logging.KeyAddress, w.cfg.Address, logging.KeyReason, err.Error())
		}
		if !w.pause(ctx) {
			return "", false
		}
	}
}

// pause lets Config.Poll pass, or returns false when ctx ends.
func (w *Watcher) pause(ctx context.Context) bool {
	timer := time.NewTimer(w.cfg.Poll)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
