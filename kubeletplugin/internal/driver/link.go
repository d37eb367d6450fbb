package driver

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/longshore-csi/longshore/csikit/csiclient"
)

// link is a connection that Driver values of one endpoint share. It ends when
// the last of them has released it and no call runs.
type link struct {
	client *csiclient.Client
	closer io.Closer
	// conn is nil when the connection is none of gRPC's own.
	conn *grpc.ClientConn
	// epoch counts the connections made; capabilities are valid for one.
	epoch atomic.Int64

	mu     sync.Mutex
	users  int // holders and running calls
	closed bool

	capsMu    sync.Mutex
	caps      Capabilities
	capsEpoch int64
}

// link makes the connection for spec. It is lazy: no driver need listen yet.
func (r *Registry) link(spec Spec) (*link, error) {
	l := &link{users: 1, capsEpoch: -1}
	conn, err := r.dial(l, spec.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("connect to CSI driver %q at %q: %w", spec.Name, spec.Endpoint, err)
	}
	l.closer, _ = conn.(io.Closer)
	l.conn, _ = conn.(*grpc.ClientConn)
	l.client, err = csiclient.New(csiclient.Config{
		Address:      spec.Endpoint,
		Conn:         conn,
		Interceptors: []grpc.UnaryClientInterceptor{l.guard, r.metrics.interceptor(spec.Name, r.cfg.Answered)},
	})
	if err != nil {
		return nil, fmt.Errorf("connect to CSI driver %q at %q: %w", spec.Name, spec.Endpoint, err)
	}
	return l, nil
}

func (r *Registry) dial(l *link, endpoint string) (grpc.ClientConnInterface, error) {
	if r.cfg.Dial != nil {
		if conn, err := r.cfg.Dial(endpoint); conn != nil || err != nil {
			return conn, err
		}
	}
	path, err := socketPath(endpoint)
	if err != nil {
		return nil, err
	}
	return csiclient.Dial(path, func() { l.epoch.Add(1) })
}

// socketPath returns the path of an endpoint: a path, or unix:///path.
func socketPath(endpoint string) (string, error) {
	path := strings.TrimPrefix(endpoint, "unix://")
	if !strings.HasPrefix(path, "/") {
		return "", fmt.Errorf("endpoint %q: must be the absolute path of a unix socket", endpoint)
	}
	return path, nil
}

// guard keeps the connection while a call runs.
func (l *link) guard(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if l.acquire() {
		defer l.release()
	}
	return call(ctx, method, req, reply, cc, opts...)
}

// acquire adds a user, unless the connection has ended.
func (l *link) acquire() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.users++
	return true
}

// release takes a user away and ends the connection after the last one.
func (l *link) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users--; l.users > 0 || l.closed {
		return
	}
	l.closed = true
	if l.closer != nil {
		_ = l.closer.Close() // no call runs on it, and no caller could act on the error
	}
}

// connected reports whether there is a connection, as far as it is known.
func (l *link) connected() bool {
	return l.conn == nil || l.conn.GetState() == connectivity.Ready
}

// capabilities returns the node capabilities of the present connection. Those of a connection that is lost are not used: the
// driver that is started next may have others.
func (l *link) capabilities(ctx context.Context) (Capabilities, error) {
	connected := l.connected()
	if caps, ok := l.cached(); ok && connected {
		return caps, nil
	}
	before := l.epoch.Load()
	reply, err := l.client.Node().NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
	if err != nil {
		return nil, err
	}
	caps := Capabilities{}
	for _, c := range reply.GetCapabilities() {
		caps[c.GetRpc().GetType()] = true
	}
	// When the connection changed meanwhile it is unknown which driver process
	// answered, unless there was none, and this very call has made it.
	if after := l.epoch.Load(); before == after || (before == 0 || !connected) && after == before+1 {
		l.capsMu.Lock()
		defer l.capsMu.Unlock()
		l.caps, l.capsEpoch = caps, after
	}
	return caps, nil
}

func (l *link) cached() (Capabilities, bool) {
	l.capsMu.Lock()
	defer l.capsMu.Unlock()
	return l.caps, l.caps != nil && l.capsEpoch == l.epoch.Load()
}
