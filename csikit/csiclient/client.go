package csiclient

import (
	"context"
	"fmt"
	"math"
	"net"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
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
	info   atomic.Pointer[Info]
}

// New checks cfg and returns a client. The connection is made by the first
// call, so New succeeds before the driver has started.
func New(cfg Config) (*Client, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg}
	base := cfg.Conn
	if base == nil {
		conn, err := c.dial()
		if err != nil {
			return nil, err
		}
		c.conn, base = conn, conn
	}
	c.calls = newCaller(base, c.conn, interceptors(cfg))
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

func (c *Client) dial() (*grpc.ClientConn, error) {
	to, err := parseAddress(c.cfg.Address)
	if err != nil {
		return nil, err
	}
	dialer := func(ctx context.Context, _ string) (net.Conn, error) {
		var d net.Dialer
		nc, err := d.DialContext(ctx, to.network, to.address)
		if err == nil {
			c.dials.Add(1)
		}
		return nc, err
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// The target is opaque to gRPC, so that no character of the path is
		// read as part of a URL; the dialer knows the real address.
		grpc.WithContextDialer(dialer),
		grpc.WithAuthority("localhost"),
		grpc.WithIdleTimeout(0),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReply), grpc.MaxCallSendMsgSize(math.MaxInt32)),
		grpc.WithDisableServiceConfig(),
	}
	if c.cfg.Tracing {
		opts = append(opts, grpc.WithStatsHandler(otelgrpc.NewClientHandler()))
	}
	conn, err := grpc.NewClient("passthrough:///driver", opts...)
	if err != nil {
		return nil, fmt.Errorf("prepare connection to CSI driver at %q: %w", c.cfg.Address, err)
	}
	return conn, nil
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
