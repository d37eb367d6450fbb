package driver

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
)

// ErrNotRegistered is returned for a driver that is not registered on this node.
var ErrNotRegistered = errors.New("CSI driver is not registered on this node")

// Config says how drivers are reached.
type Config struct {
	// Registerer receives csi_operations_seconds. Nil measures without exposing.
	Registerer prometheus.Registerer
	// Dial replaces the connection to a driver's endpoint, for drivers in the
	// same process. Default, and if it returns neither a connection nor an error: gRPC over the unix socket.
	Dial func(endpoint string) (grpc.ClientConnInterface, error)
	// Answered is called after each call to a driver, with the full name of the method. It must not block; nil is allowed.
	Answered func(driver, method string, err error)
}

// Spec describes a driver as it registered.
type Spec struct {
	// Name of the driver.
	Name string
	// Endpoint is the driver's own socket: an absolute path or unix:///path.
	Endpoint string
	// RequiresPublishPod is set when the registrar asks for pod information in
	// NodePublishVolume (csiregistration.CSIDriverOptions).
	RequiresPublishPod bool
}

// Registry holds the drivers of one node. It is safe for concurrent use.
type Registry struct {
	cfg     Config
	metrics *operations

	mu         sync.Mutex
	registered map[string]*Driver
	last       map[string]*Driver
	changed    chan struct{}
	closed     bool
}

// NewRegistry returns an empty registry.
func NewRegistry(cfg Config) *Registry {
	return &Registry{
		cfg:        cfg,
		metrics:    newOperations(cfg.Registerer),
		registered: map[string]*Driver{},
		last:       map[string]*Driver{},
		changed:    make(chan struct{}),
	}
}

// Connect returns a driver that can be called but that Get does not know yet:
// its owner calls NodeGetInfo first, then Add. A connection that the registry
// has to the same endpoint is used again, so that a registrar which restarts
// next to a running driver interrupts nothing. A driver that is not added is
// released with Driver.Close.
func (r *Registry) Connect(spec Spec) (*Driver, error) {
	r.mu.Lock()
	old := r.last[spec.Name]
	r.mu.Unlock()
	if old != nil && old.spec.Endpoint == spec.Endpoint && old.link.acquire() {
		return newDriver(spec, old.link), nil
	}
	l, err := r.link(spec)
	if err != nil {
		return nil, err
	}
	return newDriver(spec, l), nil
}

// Offer lets Last return d, before it is registered: what the driver has mounted
// for an earlier process can then be unmounted, whether or not it gets
// registered. It has no effect while a driver of that name is registered. The
// caller keeps d, and closes or adds it.
func (r *Registry) Offer(d *Driver) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.last[d.Name()]
	if r.closed || r.registered[d.Name()] != nil || old != nil && old.link == d.link || !d.link.acquire() {
		return
	}
	r.last[d.Name()] = newDriver(d.spec, d.link)
	r.wake()
	if old != nil {
		old.link.release()
	}
}

// Add makes d the registered driver of its name and wakes the waiters on
// Changed. A driver that had the name before is released once its running
// calls have ended.
func (r *Registry) Add(d *Driver) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.last[d.Name()]
	r.last[d.Name()] = d
	r.registered[d.Name()] = d
	r.wake()
	if old != nil && old != d {
		old.link.release()
	}
	if r.closed {
		d.link.release()
	}
}

// Remove takes the driver of that name out of the registry. Its connection
// stays for Last, because volumes may still have to be unmounted.
func (r *Registry) Remove(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.registered[name]; !ok {
		return
	}
	delete(r.registered, name)
	r.wake()
}

// Get returns the registered driver of that name, or ErrNotRegistered.
func (r *Registry) Get(name string) (*Driver, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d, ok := r.registered[name]; ok {
		return d, nil
	}
	return nil, fmt.Errorf("find CSI driver %q: %w", name, ErrNotRegistered)
}

// Last returns the driver of that name as it was last added or offered, even
// when it has deregistered since: the way to unmount what it has mounted. A
// driver that this process never saw gives ErrNotRegistered.
func (r *Registry) Last(name string) (*Driver, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d, ok := r.last[name]; ok {
		return d, nil
	}
	return nil, fmt.Errorf("find CSI driver %q: %w", name, ErrNotRegistered)
}

// Names returns the registered drivers, sorted.
func (r *Registry) Names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := slices.AppendSeq([]string{}, maps.Keys(r.registered))
	slices.Sort(names)
	return names
}

// Known returns the drivers that Last returns, sorted.
func (r *Registry) Known() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.last))
}

// Changed returns a channel that is closed at the next Add, Remove or Offer.
// Take it before Get, so that no change falls in between.
func (r *Registry) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// Close releases all connections. Running calls keep theirs until they end.
func (r *Registry) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.closed = true
	for _, d := range r.last {
		d.link.release()
	}
}

// wake wakes the waiters. The caller holds the lock.
func (r *Registry) wake() {
	close(r.changed)
	r.changed = make(chan struct{})
}
