package csitest

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Conn returns a connection that calls the driver's services in process, on
// the goroutine of the caller. Messages are copied, as gRPC does, and a call
// whose context has ended returns the context's error.
func (d *Driver) Conn() grpc.ClientConnInterface {
	c := &conn{methods: map[string]method{}}
	for _, desc := range descs() {
		desc = d.wrap(desc)
		for _, m := range desc.Methods {
			full := fmt.Sprintf("/%s/%s", desc.ServiceName, m.MethodName)
			c.methods[full] = method{driver: d, handler: m.Handler}
		}
	}
	return c
}

// conn dispatches calls through the service descriptions that a gRPC server uses.
type conn struct{ methods map[string]method }

var _ grpc.ClientConnInterface = (*conn)(nil)

type method struct {
	driver  *Driver
	handler grpc.MethodHandler
}

// Invoke calls a unary method.
func (c *conn) Invoke(ctx context.Context, name string, args, reply any, opts ...grpc.CallOption) error {
	m, ok := c.methods[name]
	if !ok {
		return status.Errorf(codes.Unimplemented, "method %s is not implemented", name)
	}
	request, isMessage := args.(proto.Message)
	into, isReply := reply.(proto.Message)
	if !isMessage || !isReply {
		return status.Errorf(codes.Internal, "call %s with %T and %T: want protobuf messages", name, args, reply)
	}
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	setPeer(opts)
	out, err := m.handler(m.driver, serverContext(ctx), decoder(request), nil)
	if ctxErr := ctx.Err(); ctxErr != nil {
		return status.FromContextError(ctxErr).Err()
	}
	if err != nil {
		return status.Convert(err).Err()
	}
	proto.Reset(into)
	return decoder(out.(proto.Message))(into)
}

// setPeer sets the peer of a call (grpc.Peer), as gRPC does for each call that was sent.
func setPeer(opts []grpc.CallOption) {
	for _, opt := range opts {
		if p, ok := opt.(grpc.PeerCallOption); ok {
			p.PeerAddr.Addr = &net.UnixAddr{Net: "unix"}
		}
	}
}

// NewStream returns UNIMPLEMENTED: the driver has no streaming methods.
func (c *conn) NewStream(_ context.Context, _ *grpc.StreamDesc, name string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Errorf(codes.Unimplemented, "method %s is not implemented", name)
}

// serverContext turns the outgoing metadata of the caller into incoming metadata.
func serverContext(ctx context.Context) context.Context {
	md, ok := metadata.FromOutgoingContext(ctx)
	if !ok {
		return ctx
	}
	return metadata.NewIncomingContext(metadata.NewOutgoingContext(ctx, nil), md)
}

// decoder returns a function that copies from into a message of the same type.
func decoder(from proto.Message) func(any) error {
	return func(into any) error {
		to, ok := into.(proto.Message)
		if !ok || to.ProtoReflect().Descriptor() != from.ProtoReflect().Descriptor() {
			return status.Errorf(codes.Internal, "copy a %T into a %T: want the same message", from, into)
		}
		proto.Merge(to, from)
		return nil
	}
}
