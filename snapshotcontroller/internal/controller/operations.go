package controller

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

// Values of operation_status, snapshot_type and driver_name.
const (
	opSuccess      = "success"
	opFailure      = "failure"
	opCancel       = "cancel"
	dynamic        = "dynamic"
	preProvisioned = "pre-provisioned"
	unknownDriver  = "unknown"
)

// Operations measures what users wait for, from the moment when this instance first sees that it is asked for. It is safe for
// concurrent use.
type Operations struct {
	duration *prometheus.HistogramVec

	mu      sync.Mutex
	running map[string]*object
}

// object has the operations in progress of the object of a key.
type object struct {
	uid        types.UID
	operations map[string]begun
	failed     bool // the status has an error, which is counted
}

// begun is an operation in progress.
type begun struct {
	at             time.Time
	driver, source string
	deletion       bool
}

// NewOperations registers snapshot_controller_operation_total_seconds and snapshot_controller_operations_in_flight on reg.
func NewOperations(reg prometheus.Registerer) *Operations {
	o := &Operations{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "snapshot_controller_operation_total_seconds", Help: "Total number of seconds spent by the controller on an operation",
			Buckets: []float64{0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 60, 120, 300, 600},
		}, []string{"driver_name", "operation_name", "snapshot_type", "operation_status"}),
		running: map[string]*object{},
	}
	reg.MustRegister(o.duration, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "snapshot_controller_operations_in_flight", Help: "Total number of operations in flight",
	}, o.inFlight))
	return o
}

func (o *Operations) inFlight() float64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := 0
	for _, obj := range o.running {
		n += len(obj.operations)
	}
	return float64(n)
}

// reset forgets what runs, as another instance works on it.
func (o *Operations) reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.running)
}

// progress is what has become of an object.
type progress struct {
	*kind

	driver, source           string
	created, ready, deleting bool
	failed                   bool // the status has an error
}

// observe begins and ends the operations of an owner. c may be nil.
func (o *Operations) observe(k *kind, of *owner, c *content) {
	p := progress{
		kind: k, driver: unknownDriver, source: dynamic, created: of.status.isCreated(), ready: of.isReady(),
		deleting: of.GetDeletionTimestamp() != nil, failed: of.status != nil && of.status.Error != nil,
	}
	if c != nil {
		p.driver = c.driver
	}
	if of.existing != nil {
		p.source = preProvisioned
	}
	o.advance(k.group+keyOf(of), of.GetUID(), p)
}

// advance begins and ends the operations of the object of a key. Of a key, one goroutine at a time calls it.
func (o *Operations) advance(key string, uid types.UID, p progress) {
	o.mu.Lock()
	defer o.mu.Unlock()
	obj := o.running[key]
	if obj != nil && obj.uid != uid {
		o.finishLocked(key)
		obj = nil
	}
	if obj == nil {
		obj = &object{uid: uid, operations: map[string]begun{}, failed: p.failed}
	}
	o.countFailure(obj, p)
	switch {
	case p.deleting:
		o.end(obj, p, opCancel, p.create, p.becomeReady)
		if _, known := obj.operations[p.del]; !known {
			obj.failed = p.failed // an error of the creation is none of the deletion
		}
		obj.begin(p, p.del)
	case p.ready:
		o.end(obj, p, opSuccess, p.create, p.becomeReady)
	case p.created:
		o.end(obj, p, opSuccess, p.create)
	default:
		obj.begin(p, p.create, p.becomeReady)
	}
	if len(obj.operations) > 0 {
		o.running[key] = obj
	} else {
		delete(o.running, key)
	}
}

// countFailure records once, for an error that appears in the status, how long what is in progress has taken until then. It goes on, as it
// is tried again.
func (o *Operations) countFailure(obj *object, p progress) {
	appeared := p.failed && !obj.failed
	obj.failed = p.failed
	if !appeared {
		return
	}
	for name, b := range obj.operations {
		o.duration.WithLabelValues(p.driver, name, b.source, opFailure).Observe(time.Since(b.at).Seconds())
	}
}

// finish ends the operations of the object of a key, which is gone.
func (o *Operations) finish(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.finishLocked(key)
}

func (o *Operations) finishLocked(key string) {
	obj, ok := o.running[key]
	if !ok {
		return
	}
	for name, b := range obj.operations {
		status := opCancel
		if b.deletion {
			status = opSuccess
		}
		o.duration.WithLabelValues(b.driver, name, b.source, status).Observe(time.Since(b.at).Seconds())
	}
	delete(o.running, key)
}

// begin begins operations that have not begun, and notes the driver once it is known.
func (obj *object) begin(p progress, names ...string) {
	for _, name := range names {
		b, ok := obj.operations[name]
		if !ok {
			b = begun{at: time.Now(), driver: p.driver, source: p.source, deletion: name == p.del}
		}
		if p.driver != unknownDriver {
			b.driver = p.driver
		}
		obj.operations[name] = b
	}
}

func (o *Operations) end(obj *object, p progress, status string, names ...string) {
	for _, name := range names {
		if b, ok := obj.operations[name]; ok {
			o.duration.WithLabelValues(p.driver, name, p.source, status).Observe(time.Since(b.at).Seconds())
			delete(obj.operations, name)
		}
	}
}
