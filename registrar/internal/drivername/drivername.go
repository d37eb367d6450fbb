// Package drivername reads a CSI driver's name and its information about the
// node, again each time that the connection was lost: after a restart, the
// driver may be another one, or have another configuration.
//
// It calls GetPluginInfo, and NodeGetInfo once per connection. A registrar does
// not depend on the readiness of the driver, so it does not call Probe, nor does
// it read capabilities.
package drivername

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/outcome"
)

const (
	// defaultPoll is the pause before a call that failed is repeated.
	defaultPoll = time.Second
	// logEvery is the interval of log lines with the same reason for waiting.
	logEvery = 30 * time.Second
)

// Config says how to reach the driver.
type Config struct {
	// Address of the driver: an absolute path, unix:///path or tcp://host:port.
	Address string
	// Timeout bounds each call.
	Timeout time.Duration
	// Poll is the pause before a call that failed is repeated. Default 1 s.
	Poll time.Duration
	// OnFailure is called with the reason each time that the name could not be
	// read. It may be nil.
	OnFailure func(reason string)
}

// Identity is the driver and the node that a registration with a kubelet names.
type Identity struct {
	// Name of the driver.
	Name string
	// Generation grows with each change of the name, and of the node's ID or
	// topology by NodeGetInfo, so that a reader who missed some
	// identities still notices the change.
	Generation int
}

// Watcher follows the identity of one driver.
type Watcher struct {
	cfg    Config
	conn   *grpc.ClientConn
	client *csiclient.Client
	// connections is how many were made. Calls make them, so that none is made between two calls.
	connections atomic.Int64
}

// New checks cfg. No driver need be there yet.
func New(cfg Config) (*Watcher, error) {
	if cfg.Poll == 0 {
		cfg.Poll = defaultPoll
	}
	w := &Watcher{cfg: cfg}
	conn, err := csiclient.Dial(cfg.Address, func() { w.connections.Add(1) })
	if err != nil {
		return nil, err
	}
	client, err := csiclient.New(csiclient.Config{Address: cfg.Address, Conn: conn, Timeout: cfg.Timeout})
	if err != nil {
		_ = conn.Close() // it was never used
		return nil, fmt.Errorf("connect to CSI driver at %q: %w", cfg.Address, err)
	}
	w.conn, w.client = conn, client
	return w, nil
}

// Close ends the connection. It is not needed after Run.
func (w *Watcher) Close() error { return w.conn.Close() }

// Run calls onIdentity with the driver's identity when its name is known, and whenever
// the identity has changed. It returns when ctx ends, and closes the connection.
func (w *Watcher) Run(ctx context.Context, onIdentity func(Identity)) {
	defer func() { _ = w.Close() }() // no call uses the connection any more
	logger := klog.FromContext(ctx)
	var known Identity
	var node string // the last description of the node by the driver of that name; empty before the first
	for {
		name, ok := w.ask(ctx)
		if !ok {
			return
		}
		if name != known.Name {
			logger.Info("CSI driver reported its name", logging.KeyAddress, w.cfg.Address, logging.KeyDriver, name)
			known, node = Identity{Name: name, Generation: known.Generation + 1}, ""
			onIdentity(known)
		}
		connection := w.connections.Load()
		if now, ok := w.askNode(ctx, connection); ok {
			if node != "" && now != node {
				logger.Info("CSI driver reported another node ID or topology", logging.KeyDriver, name, logging.KeyNode, now)
				known.Generation++
				onIdentity(known)
			}
			node = now
		}
		// A repeated NodeGetInfo may have made another connection, which is ready, maybe to another driver.
		if w.connections.Load() == connection && w.state(ctx) == connectivity.Ready {
			w.conn.WaitForStateChange(ctx, connectivity.Ready)
		}
		if ctx.Err() != nil {
			return
		}
		logger.Info("Connection to the CSI driver is lost", logging.KeyAddress, w.cfg.Address, logging.KeyDriver, name)
	}
}

// state returns the state of the connection, which is ready or not: gRPC lets calls use a new connection
// a moment before it reports that the connection is ready.
func (w *Watcher) state(ctx context.Context) connectivity.State {
	state := w.conn.GetState()
	for state == connectivity.Connecting && w.conn.WaitForStateChange(ctx, state) {
		state = w.conn.GetState()
	}
	return state
}

// ask returns the driver's name, however long it takes, or false when ctx ends.
func (w *Watcher) ask(ctx context.Context) (string, bool) {
	log := csiclient.WaitLog{Every: logEvery}
	for {
		name, err := w.client.DriverName(ctx)
		if err == nil {
			return name, true
		}
		if ctx.Err() != nil {
			return "", false
		}
		w.failed(ctx, &log, outcome.Message(err))
		if !w.pause(ctx) {
			return "", false
		}
	}
}

// failed reports why the driver's name could not be read.
func (w *Watcher) failed(ctx context.Context, log *csiclient.WaitLog, reason string) {
	if w.cfg.OnFailure != nil {
		w.cfg.OnFailure(reason)
	}
	if log.Due(reason) {
		klog.FromContext(ctx).Info("Waiting for the CSI driver", logging.KeyAddress, w.cfg.Address, logging.KeyReason, reason)
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
