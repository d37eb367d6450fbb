package csiclient

import (
	"context"
	"sync/atomic"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// Client is a connection to one driver. It is safe for concurrent use.
type Client struct {
	cfg   Config
	calls *caller
	// conn is nil when the driver is in this process.
	conn *grpc.ClientConn
	// dials counts the connections made; Run compares it with readAt.
	dials  atomic.Int64
	readAt atomic.Int64
	// wake ends the wait of Run when a connection is made.
	wake atomic.Pointer[context.CancelFunc]
	info atomic.Pointer[Info]
	// unreachable is why the last attempt to connect failed; nil once connected.
	unreachable atomic.Pointer[error]
	// late has an element after a call that has ended by its deadline.
	late chan struct{}
}

// New checks cfg and returns a client. The connection is made by the first
// call, so New succeeds before the driver has started.
func New(cfg Config) (*Client, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, late: make(chan struct{}, 1)}
	base := cfg.Conn
	if base == nil {
		conn, err := dial(c.cfg.Address, c.dialed)
		if err != nil {
			return nil, err
		}
		c.conn, base = conn, conn
	}
	c.calls = newCaller(base, c.conn, append([]grpc.UnaryClientInterceptor{c.noteLate}, interceptors(cfg)...))
	return c, nil
}

// interceptors lists what each call passes, outermost first.
func interceptors(cfg Config) []grpc.UnaryClientInterceptor {
	chain := append([]grpc.UnaryClientInterceptor(nil), cfg.Interceptors...)
	if cfg.Metrics != nil {
		chain = append(chain, cfg.Metrics.UnaryClientInterceptor())
	}
	return append(chain, logCalls(cfg.MaxLogLength))
}

// dialed records the result of an attempt to connect.
func (c *Client) dialed(err error) {
	if err != nil {
		c.unreachable.Store(&err)
		return
	}
	c.unreachable.Store(nil)
	c.dials.Add(1)
	if wake := c.wake.Load(); wake != nil {
		(*wake)()
	}
}

// Identity returns the driver's identity service.
func (c *Client) Identity() csi.IdentityClient { return csi.NewIdentityClient(c.calls) }

// Controller returns the driver's controller service.
func (c *Client) Controller() csi.ControllerClient { return csi.NewControllerClient(c.calls) }

// GroupController returns the driver's group controller service.
func (c *Client) GroupController() csi.GroupControllerClient {
	return csi.NewGroupControllerClient(c.calls)
}

// Node returns the driver's node service.
func (c *Client) Node() csi.NodeClient { return csi.NewNodeClient(c.calls) }

// Conn returns the connection itself, for services that have no method here.
func (c *Client) Conn() grpc.ClientConnInterface { return c.calls }

// Info returns what was last read from the driver, nil before Wait has
// succeeded. The result is shared and must not be changed.
func (c *Client) Info() *Info { return c.info.Load() }

// Close ends the connection. Calls that are running fail with Canceled.
func (c *Client) Close() error {
	if c.conn == nil {
		return nil
	}
	return c.conn.Close()
}
