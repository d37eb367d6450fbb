package kube

import (
	"io"
	"net/http"
	"strings"
	"sync"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// inFlight is the number of requests that are on their way at once. An API server takes 100 at a time over one connection
// (--http2-max-streams-per-connection), and Go's HTTP client opens another connection for each request beyond that, whose
// handshake takes more processor time at both ends than the request itself.
const inFlight = 64

// streamBuffer is how much of one answer, in bytes, may wait to be read. Go's HTTP client takes 4 MiB, which a server that sends a large list
// faster than it is decoded fills for each kind at the start.
const streamBuffer = 256 << 10

// limiting is held while a transport gets its limit: client-go gives clients of equal configurations the same one.
var limiting sync.Mutex

// limitBuffers has streamBuffer be the limit of the transport that rt wraps, which has sent nothing yet. The one of the whole process keeps its own: client-go
// takes it where there is no TLS, and so no HTTP/2.
func limitBuffers(rt http.RoundTripper) http.RoundTripper {
	limiting.Lock()
	defer limiting.Unlock()
	for inner := rt; inner != http.DefaultTransport; {
		switch t := inner.(type) {
		case *http.Transport:
			if t.HTTP2 == nil {
				t.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: streamBuffer}
			}
			return rt
		case utilnet.RoundTripperWrapper:
			inner = t.WrappedRoundTripper()
		default:
			return rt
		}
	}
	return rt
}

// Connection is what the clients of a process share that acts as many users, each by impersonation: one connection to the API server, over which at most
// 64 requests are on their way at once.
type Connection struct {
	places chan struct{} // has one element for each request on its way
}

// NewConnection returns a connection that no client uses yet.
func NewConnection() *Connection { return &Connection{places: make(chan struct{}, inFlight)} }

// limit returns a round tripper that lets inFlight requests pass at once through all that it has returned, in the order in which they come.
// Those that must not wait behind others, or wait for long themselves, pass at any time: Leases and watches.
func (c *Connection) limit(rt http.RoundTripper) http.RoundTripper {
	return &limited{Connection: c, to: rt}
}

type limited struct {
	*Connection
	to http.RoundTripper
}

var _ utilnet.RoundTripperWrapper = (*limited)(nil)

// RoundTrip implements http.RoundTripper.
func (c *limited) RoundTrip(req *http.Request) (*http.Response, error) {
	if strings.Contains(req.URL.Path, "/apis/coordination.k8s.io/") || strings.Contains(req.URL.RawQuery, "watch=") {
		return c.to.RoundTrip(req)
	}
	select {
	case c.places <- struct{}{}:
	case <-req.Context().Done():
		if req.Body != nil {
			_ = req.Body.Close() // as a RoundTripper must; nothing was sent
		}
		return nil, req.Context().Err()
	}
	leave := sync.OnceFunc(func() { <-c.places })
	resp, err := c.to.RoundTrip(req)
	if err != nil {
		leave()
		return resp, err
	}
	resp.Body = &body{ReadCloser: resp.Body, closed: leave}
	return resp, nil
}

// body is that of an answer, which is on its way until it is closed.
type body struct {
	io.ReadCloser
	closed func()
}

// Close implements io.Closer.
func (b *body) Close() error {
	defer b.closed()
	return b.ReadCloser.Close()
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (c *limited) WrappedRoundTripper() http.RoundTripper { return c.to }
