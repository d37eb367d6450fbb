package reconciletest

import (
	"context"
	"path"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// conn records the calls of one run of the component and can be cut.
type conn struct {
	inner grpc.ClientConnInterface
	stage *stage
	run   *run
	cut   atomic.Bool
}

var _ grpc.ClientConnInterface = (*conn)(nil)

// crashPoint crashes the component at a CSI call.
type crashPoint struct {
	method string
	after  bool
	mu     sync.Mutex
	times  int // 0: always
	hits   int
}

// hit reports whether the component crashes at this call.
func (p *crashPoint) hit(method string, after bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if (p.method != "" && p.method != method) || p.after != after || (p.times > 0 && p.hits >= p.times) {
		return false
	}
	p.hits++
	return true
}

// Invoke implements grpc.ClientConnInterface.
func (c *conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	name := path.Base(method)
	if c.cut.Load() {
		return errCut()
	}
	request, _ := args.(proto.Message)
	call := c.stage.log.call(name, request)
	if c.crashes(name, false) {
		c.stage.log.end(call, "crash before the call")
		return errCut()
	}
	answered := c.stage.pace.call(c.stage.t, name, request)
	err := c.inner.Invoke(ctx, method, args, reply, opts...)
	answered(err)
	switch {
	case c.cut.Load():
		c.stage.log.end(call, "the caller has given up")
		return errCut()
	case c.crashes(name, true):
		c.stage.log.end(call, status.Code(err).String()+", crash after the call")
		return errCut()
	}
	c.stage.log.end(call, outcomeOf(err))
	return err
}

// NewStream implements grpc.ClientConnInterface.
func (c *conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return c.inner.NewStream(ctx, desc, method, opts...)
}

// crashes ends the component if a crash point matches, and reports whether one did.
func (c *conn) crashes(name string, after bool) bool {
	for _, p := range c.stage.crashes {
		if p.hit(name, after) {
			c.run.kill()
			return true
		}
	}
	return false
}

func errCut() error { return status.Error(codes.Unavailable, "connection to the driver is cut") }

// outcomeOf prints the answer to a call.
func outcomeOf(err error) string {
	if err == nil {
		return codes.OK.String()
	}
	s := status.Convert(err)
	if s.Message() == "" {
		return s.Code().String()
	}
	return s.Code().String() + ": " + s.Message()
}
