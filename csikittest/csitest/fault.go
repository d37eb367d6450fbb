package csitest

import (
	"context"
	"fmt"
	"path"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Fault makes calls fail, hang or take longer. Of several faults that match a
// call, the first one injected is applied.
type Fault struct {
	// Method is the short name of the method, as in CreateVolume. Empty: all.
	Method string
	// Match restricts the fault to some requests. Nil: all. It may call the
	// driver, and may run for several calls concurrently.
	Match func(proto.Message) bool
	// Delay is the pause before the answer or, with Hang, before the call hangs.
	Delay time.Duration
	// Hang blocks the call until its context ends.
	Hang bool
	// Code is the code of the error. OK: no error, unless Hang is set.
	Code codes.Code
	// Message is the text of the error.
	Message string
	// After applies the fault after the call has taken effect: the caller does
	// not learn that the driver has succeeded.
	After bool
	// Times is the number of calls that are affected. Zero: all, until Heal.
	Times int
}

type fault struct {
	Fault
	used int
}

// Inject adds a fault.
func (d *Driver) Inject(f Fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults = append(d.faults, &fault{Fault: f})
}

// Heal removes all faults. Calls that hang already continue to hang.
func (d *Driver) Heal() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults = nil
}

// Call is one call to the driver.
type Call struct {
	// Node is the ID of the node whose instance of the driver was called.
	Node string
	// Method is the short name, as in CreateVolume.
	Method string
	// Request is a copy of the request.
	Request proto.Message
	// Done is false while the call is running.
	Done bool
	// Code is the code of the answer, OK while the call is running.
	Code codes.Code
	// Message is the text of the error, if any.
	Message string
}

// Calls returns all calls since the last ResetCalls in the order of their start.
func (d *Driver) Calls() []Call {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]Call, 0, len(d.calls))
	for _, c := range d.calls {
		out = append(out, *c)
	}
	return out
}

// ResetCalls empties the call log. Calls that are running are removed as well.
func (d *Driver) ResetCalls() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = nil
}

// wrap returns desc with every unary method intercepted by d.intercept, within
// the interceptor of the server, if the server has one.
func (d *Driver) wrap(desc *grpc.ServiceDesc) *grpc.ServiceDesc {
	out := *desc
	out.Methods = slices.Clone(desc.Methods)
	for i := range out.Methods {
		inner := out.Methods[i].Handler
		out.Methods[i].Handler = func(srv any, ctx context.Context, dec func(any) error, outer grpc.UnaryServerInterceptor) (any, error) {
			return inner(srv, ctx, dec, chain(outer, d.intercept))
		}
	}
	return &out
}

// chain returns an interceptor that calls inner within outer, which may be nil.
func chain(outer, inner grpc.UnaryServerInterceptor) grpc.UnaryServerInterceptor {
	if outer == nil {
		return inner
	}
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		return outer(ctx, req, info, func(ctx context.Context, req any) (any, error) {
			return inner(ctx, req, info, handle)
		})
	}
}

// intercept logs the call and applies a fault to it.
func (d *Driver) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	message, ok := req.(proto.Message)
	if !ok {
		return nil, status.Errorf(codes.Internal, "request of %s is a %T, not a protobuf message", info.FullMethod, req)
	}
	call, f := d.begin(path.Base(info.FullMethod), message)
	reply, err := apply(ctx, f, func() (any, error) { return handle(ctx, req) })
	d.end(call, err)
	return reply, err
}

func (d *Driver) begin(method string, req proto.Message) (*Call, *Fault) {
	call := &Call{Node: d.nodeID, Method: method, Request: proto.Clone(req)}
	d.mu.Lock()
	d.calls = append(d.calls, call)
	d.beginOn(method, targetOf(req))
	faults := slices.Clone(d.faults)
	d.mu.Unlock()
	return call, d.pickFault(faults, method, req)
}

func (d *Driver) end(call *Call, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	st := status.Convert(err)
	call.Done, call.Code, call.Message = true, st.Code(), st.Message()
	d.endOn(targetOf(call.Request))
}

// pickFault finds the fault for a call and counts its use. It does not hold the
// lock while Match runs, so the fault may be used up or healed meanwhile.
func (b *backend) pickFault(faults []*fault, method string, req proto.Message) *Fault {
	for _, f := range faults {
		if f.matches(method, req) && b.use(f) {
			return &f.Fault
		}
	}
	return nil
}

func (f *fault) matches(method string, req proto.Message) bool {
	return (f.Method == "" || f.Method == method) && (f.Match == nil || f.Match(req))
}

// use counts a use of the fault; it returns false if the fault is used up or healed.
func (b *backend) use(f *fault) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(b.faults, f)
	if i < 0 {
		return false
	}
	if f.used++; f.Times > 0 && f.used >= f.Times {
		b.faults = slices.Delete(b.faults, i, i+1)
	}
	return true
}

// apply makes a call with or without a fault.
func apply(ctx context.Context, f *Fault, call func() (any, error)) (any, error) {
	if f == nil {
		return call()
	}
	if !f.After {
		if err := f.inject(ctx); err != nil {
			return nil, err
		}
		return call()
	}
	reply, err := call()
	if err != nil {
		return nil, err
	}
	if err := f.inject(ctx); err != nil {
		return nil, err
	}
	return reply, nil
}

// inject delays the call, hangs, and returns the fault's error.
func (f *Fault) inject(ctx context.Context) error {
	if f.Delay > 0 {
		timer := time.NewTimer(f.Delay)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-timer.C:
		}
	}
	if f.Hang {
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	if f.Code == codes.OK {
		return nil
	}
	text := f.Message
	if text == "" {
		text = fmt.Sprintf("injected %s", f.Code)
	}
	return status.Error(f.Code, text)
}
