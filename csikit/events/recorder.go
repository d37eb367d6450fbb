package events

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
)

// Defaults of Config.
const (
	DefaultQPS       = 5
	DefaultBurst     = 100
	DefaultQueueSize = 1000
	// DefaultRepeat is shorter than the hour for which the API server keeps an event by
	// default, so that there is always an event of a failure that lasts.
	DefaultRepeat = 50 * time.Minute
	DefaultDrain  = 5 * time.Second
)

const (
	writeTimeout = 10 * time.Second
	writeRetries = 3
	retryPause   = time.Second
	// refusedPause is the time until a write that RBAC has refused is tried again: the role may have been fixed.
	refusedPause = 5 * time.Minute
)

// Recorder records events about objects.
type Recorder interface {
	// Normal records a step that went as planned. reason is a CamelCase word that
	// programs may match, message is for people.
	Normal(obj runtime.Object, reason, message string)
	// Warning records a problem that a user should look at.
	Warning(obj runtime.Object, reason, message string)
}

// Discard is a Recorder that drops all events.
type Discard struct{}

var _ Recorder = Discard{}

// Normal implements Recorder.
func (Discard) Normal(runtime.Object, string, string) {}

// Warning implements Recorder.
func (Discard) Warning(runtime.Object, string, string) {}

// Config of an Async recorder. Client and Component are required.
type Config struct {
	// Client writes the events.
	Client kube.Client
	// Component is the name under which users see the events; it must stay the same across
	// versions and instances.
	Component string
	// Host distinguishes instances. Default: the host's name.
	Host string
	// QPS and Burst are the budget of writes. Defaults DefaultQPS and DefaultBurst.
	QPS   float64
	Burst int
	// QueueSize is how many events may wait. Default DefaultQueueSize.
	QueueSize int
	// Repeat is the interval at which the same event is written as a new object where the component may not patch events. Default DefaultRepeat.
	Repeat time.Duration
	// Drain is how long queued events are still written at the end. Default DefaultDrain.
	Drain time.Duration
	// Registerer gets the counter csi_sidecar_events_dropped_total. nil: no metric, see Dropped.
	Registerer prometheus.Registerer
}

// kinds are those of the objects that need not carry theirs.
var kinds = sync.OnceValue(kube.Scheme)

// Async is a Recorder that writes in the background, by Run.
type Async struct {
	cfg     Config
	limiter *rate.Limiter
	wake    chan struct{}
	counter prometheus.Counter

	serial atomic.Uint64 // of the last Event object, in its name

	mu      sync.Mutex
	queue   []*write
	objects map[objectKey]*about
	entries int       // in objects
	noPatch time.Time // until then, events are not patched: it was refused
	dropped uint64
}

var _ Recorder = (*Async)(nil)

// NewRecorder returns a recorder, or everything that is wrong with cfg.
func NewRecorder(cfg Config) (*Async, error) {
	setDefaults(&cfg)
	if err := validate(cfg); err != nil {
		return nil, fmt.Errorf("make event recorder %q: %w", cfg.Component, err)
	}
	a := &Async{
		cfg:     cfg,
		limiter: rate.NewLimiter(rate.Limit(cfg.QPS), cfg.Burst),
		wake:    make(chan struct{}, 1),
		objects: map[objectKey]*about{},
		counter: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "csi_sidecar_events_dropped_total",
			Help: "Events that were not written because the queue was full or the API server refused them.",
		}),
	}
	a.serial.Store(uint64(time.Now().UnixNano())) //nolint:gosec // a start value, any will do
	if cfg.Registerer != nil {
		if err := cfg.Registerer.Register(a.counter); err != nil {
			return nil, fmt.Errorf("register the counter of event recorder %q: %w", cfg.Component, err)
		}
	}
	return a, nil
}

func setDefaults(cfg *Config) {
	if cfg.Host == "" {
		cfg.Host, _ = os.Hostname()
	}
	if cfg.QPS == 0 {
		cfg.QPS = DefaultQPS
	}
	if cfg.Burst == 0 {
		cfg.Burst = DefaultBurst
	}
	if cfg.QueueSize == 0 {
		cfg.QueueSize = DefaultQueueSize
	}
	if cfg.Repeat == 0 {
		cfg.Repeat = DefaultRepeat
	}
	if cfg.Drain == 0 {
		cfg.Drain = DefaultDrain
	}
}

func validate(cfg Config) error {
	var errs []error
	if cfg.Client == nil {
		errs = append(errs, errors.New("client must not be nil"))
	}
	if cfg.Component == "" {
		errs = append(errs, errors.New("component must not be empty"))
	}
	if cfg.QPS < 0 || cfg.Burst < 0 || cfg.QueueSize < 0 || cfg.Repeat < 0 || cfg.Drain < 0 {
		errs = append(errs, fmt.Errorf("qps %v, burst %d, queue size %d, repeat %v and drain %v must not be negative",
			cfg.QPS, cfg.Burst, cfg.QueueSize, cfg.Repeat, cfg.Drain))
	}
	return errors.Join(errs...)
}

// Normal implements Recorder.
func (a *Async) Normal(obj runtime.Object, reason, message string) {
	a.record(obj, corev1.EventTypeNormal, reason, message)
}

// Warning implements Recorder.
func (a *Async) Warning(obj runtime.Object, reason, message string) {
	a.record(obj, corev1.EventTypeWarning, reason, message)
}

// Dropped returns how many events were lost.
func (a *Async) Dropped() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.dropped
}

// record queues an event unless it is one that users see already.
func (a *Async) record(obj runtime.Object, eventType, reason, message string) {
	ref, ok := reference(kinds(), obj)
	if !ok {
		return // no user could look at the object
	}
	message = cut(message)
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.observeLocked(ref, seriesKey{eventType, reason}, message, time.Now())
	if w == nil {
		return
	}
	w.waiting++
	a.queue = append(a.queue, w)
	if len(a.queue) > a.cfg.QueueSize {
		dropped := a.takeLocked(corev1.EventTypeNormal)
		dropped.waiting--
		a.dropLocked(dropped)
	}
	a.signal()
}

// dropLocked counts an event that was lost. What is recorded next is written.
func (a *Async) dropLocked(w *write) {
	if w.name != "" {
		w.latest = nil
		return // users see the event, with an older count
	}
	a.countLocked()
	a.removeLocked(w.entry)
}

func (a *Async) countLocked() {
	a.dropped++
	a.counter.Inc()
}

func (a *Async) signal() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

func (a *Async) pop() *write {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.popLocked()
}

// popLocked returns the next event: the oldest, or in a queue that is longer than the budget
// allows to write at once, the oldest Warning.
func (a *Async) popLocked() *write {
	if len(a.queue) > a.cfg.Burst {
		return a.takeLocked(corev1.EventTypeWarning)
	}
	return a.takeLocked("")
}

// takeLocked removes and returns the oldest event of the type, or the oldest of all if there is none.
func (a *Async) takeLocked(eventType string) *write {
	if len(a.queue) == 0 {
		return nil
	}
	i := max(0, slices.IndexFunc(a.queue, func(w *write) bool { return w.key.eventType == eventType }))
	w := a.queue[i]
	a.queue = slices.Delete(a.queue, i, i+1)
	return w
}

// Run writes events until ctx is done, then the queued ones, for at most Config.Drain. Its context
// should end after that of the code that records.
func (a *Async) Run(ctx context.Context) error {
	rest, cancel := outlive(ctx, a.cfg.Drain)
	defer cancel()
	for ctx.Err() == nil {
		w := a.pop()
		if w == nil {
			select {
			case <-a.wake:
			case <-ctx.Done():
			}
			continue
		}
		if !sleep(ctx, a.limiter.Reserve().Delay()) {
			a.putBack(w)
			break
		}
		a.write(ctx, rest, w)
	}
	a.drain(rest)
	return nil
}

// outlive returns a context that ends, at the latest, when grace has passed since the end of ctx.
func outlive(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	rest, cancel := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() {
		sleep(rest, grace)
		cancel()
	})
	return rest, cancel
}

// putBack returns an event to the front of the queue.
func (a *Async) putBack(w *write) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.queue = append([]*write{w}, a.queue...)
}

// drain writes the rest of the queue, without regard to the budget.
func (a *Async) drain(ctx context.Context) {
	for w := a.pop(); w != nil; w = a.pop() {
		if ctx.Err() != nil {
			a.lost(ctx, w, ctx.Err())
			continue
		}
		a.write(ctx, ctx, w)
	}
}

// write sends an event, with some retries until ctx is done if the server is not well. An attempt in
// progress then goes on until rest is done.
func (a *Async) write(ctx, rest context.Context, w *write) {
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		w.waiting--
	}()
	for attempt := 1; ; attempt++ {
		call, cancel := context.WithTimeout(rest, writeTimeout)
		err := a.send(call, w)
		cancel()
		if err == nil {
			return
		}
		if attempt == writeRetries || hopeless(err) || !sleep(ctx, retryPause) {
			a.lost(ctx, w, err)
			return
		}
	}
}

// send changes the Event object of w, or creates it.
func (a *Async) send(ctx context.Context, w *write) error {
	done, err := a.patch(ctx, w)
	if done {
		return err
	}
	if w.event == nil {
		a.mu.Lock()
		w.event = a.build(w)
		a.mu.Unlock()
	}
	_, err = a.cfg.Client.Events(w.event.Namespace).Create(ctx, w.event, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	w.name, w.created = w.event.Name, time.Now()
	return nil
}

// patch changes the Event object of w. It is not done if there is none, or no right to.
func (a *Async) patch(ctx context.Context, w *write) (done bool, err error) {
	a.mu.Lock()
	namespace, name, allowed := w.namespace(), w.name, !time.Now().Before(a.noPatch)
	change, err := w.change()
	a.mu.Unlock()
	if name == "" || !allowed || err != nil {
		return err != nil, err
	}
	_, err = a.cfg.Client.Events(namespace).Patch(ctx, name, types.MergePatchType, change, metav1.PatchOptions{})
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case apierrors.IsNotFound(err): // the API server forgets events
		return false, nil
	case refused(err):
		a.noPatch = time.Now().Add(refusedPause)
		return !w.news && time.Since(w.created) < a.cfg.Repeat, nil
	}
	return true, err
}

// lost counts an event that could not be written.
func (a *Async) lost(ctx context.Context, w *write, err error) {
	klog.FromContext(ctx).V(2).Info("Event was not written", logging.KeyReason, w.key.reason,
		logging.KeyObject, klog.KRef(w.of.namespace, w.of.name), "err", err)
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case refused(err):
		a.countLocked()
		w.notBefore = time.Now().Add(min(refusedPause, a.cfg.Repeat))
	case hopeless(err):
		a.countLocked() // it stays remembered: the next attempt would end the same
		w.notBefore = time.Now().Add(a.cfg.Repeat)
	default:
		a.dropLocked(w)
	}
}

// hopeless reports whether the next attempt would end the same: the namespace is being deleted, the event is
// invalid, or the component lacks the permission.
func hopeless(err error) bool {
	return refused(err) || apierrors.IsNotFound(err) || apierrors.IsInvalid(err) ||
		apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// refused reports whether the component lacks the permission to write the event. An administrator can change that.
func refused(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }

// sleep reports whether the pause was over before ctx.
func sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
