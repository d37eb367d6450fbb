package agent

import (
	"context"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/longshore-csi/longshore/csikittest/csitest"
)

// modelDriver is a driver with a process on each node. It goes on with a call whose caller has given up, and returns ABORTED meanwhile.
type modelDriver struct {
	model  *model
	name   string
	csi    *csitest.Driver
	onNode map[string]grpc.ClientConnInterface

	mu     sync.Mutex
	faults []*callFault
	// down has the nodes on which it does not run, and quiet those of them whose registrar runs.
	down, quiet map[string]bool
	// epoch counts the ends of its process on a node.
	epoch map[string]int
	// busy has the volumes for which a call runs, as NODE/VOLUME, with the epoch of the process.
	busy    map[string]int
	changed chan struct{}
}

// callFault is what happens to calls.
type callFault struct {
	node, method string
	code         codes.Code
	// after lets the call take effect, and only the answer is code.
	after bool
	delay time.Duration
	// crash ends the driver's process.
	crash bool
	times int
}

func newModelDriver(m *model, nodes []string, o csitest.Options) *modelDriver {
	o.Controller = []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME} // attachDetach attaches
	o.NodeID = nodes[0]
	d := &modelDriver{
		model: m, name: o.Name, csi: csitest.New(o), onNode: map[string]grpc.ClientConnInterface{}, down: map[string]bool{}, quiet: map[string]bool{},
		epoch: map[string]int{}, busy: map[string]int{}, changed: make(chan struct{}),
	}
	for _, node := range nodes {
		d.onNode[node] = d.csi.OnNode(node, nil).Conn()
	}
	return d
}

// state reports whether the driver runs on a node, and returns a channel that is closed when that changes.
func (d *modelDriver) state(node string) (up bool, changed <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.down[node], d.changed
}

func (d *modelDriver) registrarStops(node string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.quiet[node]
}

// set starts or ends the process of the driver on a node. Calls in progress end with it.
func (d *modelDriver) set(node string, up, quiet bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down[node] == up {
		d.model.logf("%s: driver %s runs: %t", node, d.name, up)
	}
	d.down[node], d.quiet[node] = !up, quiet
	d.epoch[node]++
	close(d.changed)
	d.changed = make(chan struct{})
}

// reboot loses the mounts of a node. Inline volumes go with them.
func (d *modelDriver) reboot(node string) {
	d.mu.Lock()
	d.epoch[node]++
	d.mu.Unlock()
	here := func(m csitest.Mount) bool { return m.Node == node }
	for _, v := range d.csi.Volumes() {
		v.Staged, v.Published = slices.DeleteFunc(v.Staged, here), slices.DeleteFunc(v.Published, here)
		if v.Ephemeral && len(v.Published) == 0 {
			d.csi.RemoveVolume(v.ID)
			continue
		}
		d.csi.AddVolume(v)
	}
}

func (d *modelDriver) inject(f callFault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults = append(d.faults, &f)
}

func (d *modelDriver) heal() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults = nil
}

// faultFor returns what happens to a call.
func (d *modelDriver) faultFor(node, method string) callFault {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, f := range d.faults {
		if f.node == node && f.method == method {
			if f.times--; f.times <= 0 {
				d.faults = slices.Delete(d.faults, i, i+1)
			}
			return *f
		}
	}
	return callFault{}
}

// modelConn is the connection of one agent to a driver on its node.
type modelConn struct {
	process *process
	driver  *modelDriver
	base    grpc.ClientConnInterface
}

// modelCall is one call for a volume.
type modelCall struct {
	process *process
	driver  *modelDriver
	method  string
	request proto.Message
	// prior is what was known of the staging or target path before.
	prior certainty
	// effective is true once the call has taken effect.
	effective bool
}

// NewStream implements grpc.ClientConnInterface.
func (c *modelConn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "there are no streams")
}

// Invoke implements grpc.ClientConnInterface.
func (c *modelConn) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	node, d := c.process.node.name, c.driver
	if up, _ := d.state(node); !up || c.process.dead.Load() {
		return status.Error(codes.Unavailable, "the driver does not run")
	}
	call := &modelCall{process: c.process, driver: d, method: path.Base(method), request: args.(proto.Message)}
	d.model.begin(call)
	answer := make(chan error, 1)
	out := reply.(proto.Message).ProtoReflect().New().Interface()
	d.model.calls.Go(func() { answer <- c.serve(method, call, out) })
	var err error
	answered := false
	select {
	case <-ctx.Done():
		err = status.FromContextError(ctx.Err()).Err()
	case err = <-answer:
		answered = true
	}
	d.model.end(call, answered, err)
	if err == nil {
		proto.Merge(reply.(proto.Message), out)
	}
	return err
}

// serve is the driver's side of a call.
func (c *modelConn) serve(method string, call *modelCall, out proto.Message) error {
	node, d := c.process.node.name, c.driver
	f := d.faultFor(node, call.method)
	epoch, err := d.enter(node, call.volume())
	if err != nil {
		return err
	}
	defer d.leave(node, call.volume(), epoch)
	if f.delay > 0 {
		time.Sleep(f.delay)
	}
	if f.crash && !f.after {
		d.set(node, false, true)
	}
	if !d.lives(node, epoch) {
		return status.Error(codes.Unavailable, "the driver has died")
	}
	if f.code != codes.OK && !f.after {
		return status.Errorf(f.code, "injected %s", f.code)
	}
	err = c.base.Invoke(context.Background(), method, call.request, out)
	d.model.done(call, err)
	if f.crash {
		d.set(node, false, true)
	}
	if !d.lives(node, epoch) {
		return status.Error(codes.Unavailable, "the driver has died")
	}
	if err == nil && f.code != codes.OK {
		return status.Errorf(f.code, "injected %s", f.code)
	}
	return err
}

func (d *modelDriver) lives(node string, epoch int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.epoch[node] == epoch
}

// enter begins a call, unless one for the same volume runs in the same process.
func (d *modelDriver) enter(node, volume string) (epoch int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := node + "/" + volume
	if since, ok := d.busy[key]; ok && since == d.epoch[node] && volume != "" {
		return 0, status.Error(codes.Aborted, "an operation on the volume is pending")
	}
	d.busy[key] = d.epoch[node]
	return d.epoch[node], nil
}

func (d *modelDriver) leave(node, volume string, epoch int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if key := node + "/" + volume; d.busy[key] == epoch {
		delete(d.busy, key)
	}
}
