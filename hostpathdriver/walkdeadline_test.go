package hostpathdriver

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/loop"
)

// expiring is the context of a call whose deadline passes when a test says so.
type expiring struct {
	context.Context

	done chan struct{}
	mu   sync.Mutex
	err  error
	then []*func()
}

func newExpiring(ctx context.Context) *expiring {
	e := &expiring{Context: ctx, done: make(chan struct{})}
	context.AfterFunc(ctx, func() { e.end(context.Cause(ctx)) })
	return e
}

// Done implements context.Context.
func (e *expiring) Done() <-chan struct{} { return e.done }

// Err implements context.Context.
func (e *expiring) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// AfterFunc is how package context passes the end of a context on to those that
// are derived from it. Here all of them have ended when end returns.
func (e *expiring) AfterFunc(f func()) (stop func() bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		go f()
		return func() bool { return false }
	}
	e.then = append(e.then, &f)
	return func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		before := len(e.then)
		e.then = slices.DeleteFunc(e.then, func(other *func()) bool { return other == &f })
		return len(e.then) < before
	}
}

func (e *expiring) end(err error) {
	e.mu.Lock()
	if e.err != nil {
		e.mu.Unlock()
		return
	}
	e.err = err
	then := e.then
	close(e.done)
	e.mu.Unlock()
	for _, f := range then {
		(*f)()
	}
}

// deadlines let the deadline of the call in progress pass at a fault point. The
// process lives on.
type deadlines struct {
	mu sync.Mutex
	// call is the one in progress, point the fault point at which a deadline
	// passed and that no client has received yet.
	call  *expiring
	point string
	// ended says that no deadline passes any more.
	ended bool
}

// pass is called at the fault point.
func (d *deadlines) pass(name string) {
	d.mu.Lock()
	call := d.call
	if d.ended {
		call = nil
	}
	if call != nil {
		d.point = name
	}
	d.mu.Unlock()
	if call != nil {
		call.end(context.DeadlineExceeded)
	}
}

// end lets no deadline pass any more.
func (d *deadlines) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
}

// passed returns the fault point at which a deadline has passed, once.
func (d *deadlines) passed() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	point := d.point
	d.point = ""
	return point
}

// expire gives each call of a driver a context that can be ended.
func (d *deadlines) expire(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	call := newExpiring(ctx)
	d.mu.Lock()
	d.call = call
	d.mu.Unlock()
	return handler(call, req)
}

// intercept gives a client the answer that it has when its deadline passes,
// whatever the driver answers later.
func (d *deadlines) intercept(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, conn, options...)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.point != "" {
		return status.Error(codes.DeadlineExceeded, "the deadline of the call has passed")
	}
	return err
}

// serve starts the driver in this process. At a fault point the deadline of the
// call passes.
func (w *walker) serve(at int) {
	w.t.Helper()
	w.deadlines = &deadlines{}
	faults := &faultPoints{at: int64(at), armed: w.path("armed"), hit: w.deadlines.pass}
	bodies := logging.NewOptions()
	bodies.Verbosity = 5
	logger, err := logging.New(bodies, faults)
	w.must(nil, err)
	o := w.options
	w.must(nil, equip(&o, w.dir, faults))
	w.fakeMounts, _ = o.Mounter.(faultyMounter).Mounter.(*mount.Fake)
	w.fakeDevices, _ = o.Devices.(faultyDevices).Devices.(*loop.Fake)
	o.interceptors = []grpc.UnaryServerInterceptor{w.deadlines.expire}
	before := w.ctx
	w.ctx = klog.NewContext(w.ctx, logger)
	started := w.start(o, grpc.WithUnaryInterceptor(w.deadlines.intercept))
	w.ctx = before
	w.use(started.conn)
}

// checkClaims compares mounts and devices with the records of the node, after a
// call that has failed.
func (w *walker) checkClaims() {
	w.t.Helper()
	_, places := w.nodeRecords()
	for _, path := range w.mounts() {
		if !places[path] {
			w.t.Errorf("%s is mounted, and in no record", path)
		}
	}
	for _, file := range w.devices() {
		if !places[file] {
			w.t.Errorf("%s is attached, and in no record", file)
		}
	}
}
