// Package leader lets several processes serve the controller of one state directory: one of them leads, and the others pass their calls on to it over a socket
// in the directory. When the leader ends, the next call makes another process lead. So a Deployment may have several replicas, or roll over, and each component
// beside a driver may call the driver of its own pod.
package leader

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/csiserver"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/driverkit/state"
)

const (
	lockName   = "controller.lock"
	socketName = "controller.sock"
	// nodeHeader is the header with the node of the process that passes a call on.
	nodeHeader = "longshore-hostpath-node"
	// answeredTrailer is the trailer of an answer of a controller: UNAVAILABLE without it is that of the connection.
	answeredTrailer = "longshore-hostpath-answered"
	// tryPeriod is the pause between two attempts to lead, or to find the leader.
	tryPeriod = 20 * time.Millisecond
	// idlePeriod is the pause between two attempts to lead while there are no calls.
	idlePeriod = time.Second
)

// Config configures a Candidate.
type Config struct {
	// Dir is the state directory.
	Dir string
	// Node is the node of this process; empty for a controller alone.
	Node string
	// Open makes the controller ready, when this process begins to lead.
	Open func(ctx context.Context) error
	// Close ends what Open began.
	Close func()
	// WithNode returns the context of a call that a process with that node has passed on.
	WithNode func(ctx context.Context, node string) context.Context
}

// Candidate is a process that can lead.
type Candidate struct {
	cfg Config
	// register registers the services that others use; nil until Serve.
	register func(grpc.ServiceRegistrar)

	mu      sync.Mutex
	lock    *state.Lock
	leading bool
	stop    context.CancelFunc
	ended   chan error
	conn    *grpc.ClientConn
}

// New returns a candidate, which does not lead yet. register registers the services of the controller.
func New(cfg Config, register func(grpc.ServiceRegistrar)) *Candidate {
	return &Candidate{cfg: cfg, register: register}
}

// TryLead makes this process lead if no other does, and reports whether it leads. An error says that the controller could not be opened.
func (c *Candidate) TryLead(ctx context.Context) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leading {
		return true, nil
	}
	lock, err := state.Acquire(filepath.Join(c.cfg.Dir, lockName), "controller")
	if errors.Is(err, state.ErrLocked) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := c.lead(context.WithoutCancel(ctx)); err != nil {
		return false, errors.Join(err, lock.Release())
	}
	c.lock, c.leading = lock, true
	klog.FromContext(ctx).Info("This process leads the controllers", logging.KeyPath, c.cfg.Dir)
	return true, nil
}

// lead opens the controller, and serves it to other processes.
func (c *Candidate) lead(ctx context.Context) error {
	if err := c.cfg.Open(ctx); err != nil {
		return err
	}
	if c.register == nil {
		return nil
	}
	endpoint, done, err := c.socket()
	if err != nil {
		c.cfg.Close()
		return err
	}
	server, err := csiserver.Listen(csiserver.Config{Endpoint: endpoint, SocketMode: 0o600, Interceptors: []grpc.UnaryServerInterceptor{c.serveOther}}, c.register)
	if err != nil {
		c.cfg.Close()
		done()
		return fmt.Errorf("serve other controllers: %w", err)
	}
	ctx, c.stop = context.WithCancel(ctx)
	c.ended = make(chan error, 1)
	go func() {
		defer done()
		c.ended <- server.Run(ctx)
	}()
	return nil
}

// socket returns the path of the socket by an open file of its directory, as a path has at most 107 bytes. It is valid until done.
func (c *Candidate) socket() (path string, done func(), err error) {
	dir, err := os.Open(c.cfg.Dir)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), socketName), func() { _ = dir.Close() }, nil // It was opened for its number alone.
}

// serveOther serves a call that was passed on: its context has the node for which it is.
func (c *Candidate) serveOther(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if sent := metadata.ValueFromIncomingContext(ctx, nodeHeader); len(sent) == 1 {
		ctx = c.cfg.WithNode(ctx, sent[0])
	}
	if err := grpc.SetTrailer(ctx, metadata.Pairs(answeredTrailer, "true")); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

// Run makes this process lead as soon as no other does, until ctx ends.
func (c *Candidate) Run(ctx context.Context) error {
	ticker := time.NewTicker(idlePeriod)
	defer ticker.Stop()
	for first := true; ; first = false {
		leads, err := c.TryLead(ctx)
		if err != nil {
			return err
		}
		if first && !leads {
			klog.FromContext(ctx).Info("Another process leads the controllers, and has the calls passed on to it", logging.KeyPath, c.cfg.Dir)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Release ends the lead, if this process has it. The next call of any process makes one lead.
func (c *Candidate) Release() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	if c.conn != nil {
		errs = append(errs, c.conn.Close())
		c.conn = nil
	}
	if c.leading {
		if c.stop != nil {
			c.stop()
			errs = append(errs, <-c.ended)
		}
		c.cfg.Close()
		errs = append(errs, c.lock.Release())
		c.leading = false
	}
	return errors.Join(errs...)
}

// Intercept serves the calls of the controller where this process leads, and passes them on otherwise. Other calls are served here.
func (c *Candidate) Intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if !strings.HasPrefix(info.FullMethod, "/csi.v1.Controller/") && !strings.HasPrefix(info.FullMethod, "/csi.v1.GroupController/") {
		return handler(ctx, req)
	}
	message, ok := req.(proto.Message)
	if !ok {
		return nil, status.Errorf(codes.Internal, "%s: request of type %T", info.FullMethod, req)
	}
	answer, here, err := c.Call(ctx, info.FullMethod, message)
	if here && err == nil {
		return handler(ctx, req)
	}
	return answer, err
}

// Call passes a call on to the leader and returns its answer, unless this process leads: here is true then, and nothing was done.
func (c *Candidate) Call(ctx context.Context, method string, req proto.Message) (answer proto.Message, here bool, err error) {
	for {
		if here, err := c.TryLead(ctx); here || err != nil {
			return nil, here, err
		}
		answer, answered, err := c.passOn(ctx, method, req)
		if answered || status.Code(err) != codes.Unavailable {
			return answer, false, err
		}
		// The leader ended, or has not begun to listen. CSI calls may be repeated.
		select {
		case <-ctx.Done():
			return nil, false, status.Errorf(codes.Aborted, "no controller leads in %s: %v: %v", c.cfg.Dir, context.Cause(ctx), err)
		case <-time.After(tryPeriod):
		}
	}
}

// passOn makes a call of the leader, and reports whether an error is the answer of its controller.
func (c *Candidate) passOn(ctx context.Context, method string, req proto.Message) (answer proto.Message, answered bool, err error) {
	conn, err := c.connect()
	if err != nil {
		return nil, false, err
	}
	if answer, err = answerOf(method); err != nil {
		return nil, false, err
	}
	var trailer metadata.MD
	err = conn.Invoke(metadata.AppendToOutgoingContext(ctx, nodeHeader, c.cfg.Node), method, req, answer, grpc.Trailer(&trailer))
	return answer, len(trailer.Get(answeredTrailer)) > 0, err
}

// answerOf returns an empty answer of a method.
func answerOf(method string) (proto.Message, error) {
	name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(method, "/"), "/", "."))
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err != nil {
		return nil, fmt.Errorf("find method %s: %w", method, err)
	}
	described, ok := found.(protoreflect.MethodDescriptor)
	if !ok {
		return nil, fmt.Errorf("%s is no method", method)
	}
	kind, err := protoregistry.GlobalTypes.FindMessageByName(described.Output().FullName())
	if err != nil {
		return nil, err
	}
	return kind.New().Interface(), nil
}

// connect returns the connection to the leader, whichever it is.
func (c *Candidate) connect() (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		return c.conn, nil
	}
	conn, err := grpc.NewClient("passthrough:///leader", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(c.dial),
		grpc.WithConnectParams(connectParams()))
	if err == nil {
		c.conn = conn
	}
	return conn, err
}
