package reconcile

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
)

const (
	// DefaultDrain is how long running work may take after the end of the context.
	DefaultDrain = 25 * time.Second
	// DefaultStuckAfter is the age from which a waiting key is logged.
	DefaultStuckAfter = time.Minute
	// conflictRetry is the first pause after a conflict: as long as a watch may need to
	// bring the newer object.
	conflictRetry = 50 * time.Millisecond
	// transientRetry is the longest pause after errors by which the API server says that it is away or overloaded: its work goes on within that time when
	// it is back.
	transientRetry = 30 * time.Second
)

// Result of a Reconcile that did not fail.
type Result struct {
	// After is the pause until the key is reconciled again. 0: done, until the key is added.
	After time.Duration
}

// Config of a Controller. Name and Reconcile are required.
type Config[K comparable] struct {
	// Name of the queue in metrics and logs, such as "claims".
	Name string
	// Reconcile brings the actual state closer to the objects of the key. A stale write
	// (kube.IsStale) is repeated soon and without a log line; other errors, and panics, are
	// logged and repeated with the backoff of Retry.
	Reconcile func(ctx context.Context, key K) (Result, error)
	// Inputs returns what the work on a key depends on, as a comparable value, without anything that the work itself writes. A key that failed, or that
	// asked for another look by Result.After, then waits for its pause as long as its inputs are what they were when the attempt began, however often
	// it is added: a watch brings back what the work wrote before it failed, which must not start it again. Other inputs end the wait and the
	// failures, at most once in Retry.Start; Wake does so in any case. Work that makes several writes calls Progress after each. Inputs must not call the Controller.
	//
	// nil: each Add ends the wait. That is right only for work that writes nothing which adds its key.
	Inputs func(key K) any
	// Class returns with which other keys a key shares workers. It is called when the key is added, and must not call the
	// Controller. nil: all share the workers, and are served in the order in which they were added.
	Class func(key K) Class
	// HighPriority reports whether a key is served before all others of its pool. It is called as Class is. nil: none is.
	HighPriority func(key K) bool
	// Workers is the number of keys of a pool that are reconciled concurrently. Default 1.
	Workers int
	// Retry holds the pauses between failures; each is lengthened by up to a fifth, so that
	// keys which failed together do not come back together. Default flagset.NewRetry.
	Retry flagset.Retry
	// Timeout is the deadline of one Reconcile. 0: none.
	Timeout time.Duration
	// Drain is how long running work may take after the end of Run's context. Default DefaultDrain.
	Drain time.Duration
	// Metrics receives the metrics of the queue (kubemetrics.Queues). nil: no metrics.
	Metrics workqueue.MetricsProvider
	// Registerer gets the age of the oldest waiting key. nil: not measured.
	Registerer prometheus.Registerer
	// StuckAfter is the age from which a waiting key is logged. Default DefaultStuckAfter.
	StuckAfter time.Duration
}

// Controller works on keys. It starts no goroutine before Run, and has none left after it;
// keys that are added before Run wait for it.
type Controller[K comparable] struct {
	cfg     Config[K]
	queue   lateQueue[K]
	keys    *fairQueue[K]
	backoff *backoff[K]
	gauge   prometheus.Collector
	started atomic.Bool
	woken   woken
}

// State is a snapshot of a Controller, for /debug/state.
type State struct {
	// Name of the queue.
	Name string `json:"name"`
	// Waiting keys, without those that pause after a failure.
	Waiting int `json:"waiting"`
	// OldestSeconds is how long the oldest of them waits.
	OldestSeconds float64 `json:"oldestSeconds"`
	// Failing is the number of keys whose last attempt failed, and Failures has the first 100 of them.
	Failing  int       `json:"failing"`
	Failures []Failing `json:"failures,omitempty"`
	// Running has the keys that are being worked on, and for how many seconds.
	Running map[string]float64 `json:"running,omitempty"`
}

// New returns a controller, or everything that is wrong with cfg.
func New[K comparable](cfg Config[K]) (*Controller[K], error) {
	setDefaults(&cfg)
	if err := validate(cfg); err != nil {
		return nil, fmt.Errorf("make controller %q: %w", cfg.Name, err)
	}
	c := &Controller[K]{
		cfg:     cfg,
		keys:    newFairQueue(cfg),
		backoff: newBackoff[K](cfg.Retry.Start),
	}
	if cfg.Registerer != nil {
		c.gauge = ageGauge(cfg.Name, c.keys)
		if err := cfg.Registerer.Register(c.gauge); err != nil {
			return nil, fmt.Errorf("register the queue age of controller %q: %w", cfg.Name, err)
		}
	}
	return c, nil
}

// newQueue starts the goroutines of a queue; its ShutDown ends them.
func (c *Controller[K]) newQueue() workqueue.TypedDelayingInterface[K] {
	return workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[K]{
		Name:            c.cfg.Name,
		MetricsProvider: c.cfg.Metrics,
		Queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[K]{
			Name: c.cfg.Name, MetricsProvider: c.cfg.Metrics, Queue: c.keys,
		}),
	})
}

func setDefaults[K comparable](cfg *Config[K]) {
	if cfg.Workers == 0 {
		cfg.Workers = 1
	}
	if cfg.Retry == (flagset.Retry{}) {
		cfg.Retry = flagset.NewRetry()
	}
	if cfg.Drain == 0 {
		cfg.Drain = DefaultDrain
	}
	if cfg.StuckAfter == 0 {
		cfg.StuckAfter = DefaultStuckAfter
	}
	if cfg.Metrics == nil {
		cfg.Metrics = noMetrics{}
	}
}

func validate[K comparable](cfg Config[K]) error {
	var errs []error
	if cfg.Name == "" {
		errs = append(errs, errors.New("name must not be empty"))
	}
	if cfg.Reconcile == nil {
		errs = append(errs, errors.New("function Reconcile must not be nil"))
	}
	if cfg.Workers < 0 {
		errs = append(errs, fmt.Errorf("workers %d must be at least 1", cfg.Workers))
	}
	for name, d := range map[string]time.Duration{"timeout": cfg.Timeout, "drain": cfg.Drain, "stuckAfter": cfg.StuckAfter} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("%s %v must not be negative", name, d))
		}
	}
	errs = append(errs, cfg.Retry.Validate())
	return errors.Join(errs...)
}

// Add queues the key. Keys that wait already are not added twice; a key that is being reconciled is reconciled once
// more afterwards.
func (c *Controller[K]) Add(key K) { c.queue.add(key, 0) }

// AddAfter is Add after a pause.
func (c *Controller[K]) AddAfter(key K, pause time.Duration) { c.queue.add(key, pause) }

// Wake queues the key and ends its wait and its failures: what it failed for may be over.
func (c *Controller[K]) Wake(key K) { c.WakeAfter(key, 0) }

// WakeAfter is Wake after a pause.
func (c *Controller[K]) WakeAfter(key K, pause time.Duration) {
	c.backoff.wake(key, true)
	c.queue.add(key, pause)
}

// State returns a snapshot of the controller.
func (c *Controller[K]) State() State {
	s := State{Name: c.cfg.Name, OldestSeconds: c.keys.oldest(time.Now()).Seconds()}
	s.Failing, s.Failures = c.backoff.failing()
	s.Waiting = c.keys.Len() + c.queue.count()
	for _, r := range c.Running() {
		if s.Running == nil {
			s.Running = map[string]float64{}
		}
		s.Running[fmt.Sprint(r.Key)] = time.Since(r.Since).Seconds()
	}
	return s
}

// Running returns the keys that are being reconciled, in no order.
func (c *Controller[K]) Running() []Running[K] { return c.keys.list() }

// IsRunning reports whether the key is being reconciled.
func (c *Controller[K]) IsRunning(key K) bool { return c.keys.isRunning(key) }

// Run works until ctx is done and every running Reconcile has returned; after Config.Drain, their contexts are cancelled.
// It may be called once.
func (c *Controller[K]) Run(ctx context.Context) error {
	if c.started.Swap(true) {
		return fmt.Errorf("controller %q was started before", c.cfg.Name)
	}
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	queue := c.newQueue()
	c.queue.open(queue)
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		c.dispatch(ctx, work, queue)
	}()
	c.watchAge(ctx)
	c.keys.end()
	queue.ShutDown()
	c.drain(ctx, finished, cancel)
	if c.gauge != nil {
		c.cfg.Registerer.Unregister(c.gauge)
	}
	return nil
}

// drain waits for the workers; it cancels their work when they take too long or must not go on.
func (c *Controller[K]) drain(ctx context.Context, finished <-chan struct{}, cancel context.CancelFunc) {
	if !mustAbort(ctx) {
		timer := time.NewTimer(c.cfg.Drain)
		defer timer.Stop()
		select {
		case <-finished:
			return
		case <-aborted(ctx):
		case <-timer.C:
			klog.FromContext(ctx).Info("Work is cancelled, it did not end in time",
				logging.KeyController, c.cfg.Name, logging.KeyTimeout, c.cfg.Drain, logging.KeyState, c.State())
		}
	}
	cancel()
	<-finished
}

// dispatch has a worker begin each key that may begin, until the end, and returns when all workers have ended.
func (c *Controller[K]) dispatch(ctx, work context.Context, queue workqueue.TypedInterface[K]) {
	var workers sync.WaitGroup
	idle := make(chan K) // to goroutines whose key is done: the stack of a new one would have to grow first
	for c.keys.take() {
		key, _ := queue.Get()
		select {
		case idle <- key:
			continue
		default:
		}
		workers.Go(func() {
			c.reconcileKey(ctx, work, queue, key)
			for next := range idle {
				c.reconcileKey(ctx, work, queue, next)
			}
		})
	}
	close(idle)
	workers.Wait()
	for queue.Len() > 0 { // nothing more is begun, and the metrics show an empty queue
		key, _ := queue.Get()
		queue.Done(key)
	}
}

// reconcileKey reconciles a key, unless ctx has ended, and frees its worker.
func (c *Controller[K]) reconcileKey(ctx, work context.Context, queue workqueue.TypedInterface[K], key K) {
	defer queue.Done(key)
	defer c.keys.release(key)
	if ctx.Err() != nil {
		return
	}
	inputs := c.inputs(ctx, key)
	if wait := c.backoff.left(key, inputs); wait > 0 && c.cfg.Inputs != nil {
		c.queue.add(key, wait)
		return
	}
	result, err := c.call(context.WithValue(work, progressKey{}, func() { inputs = c.inputs(ctx, key) }), key)
	c.requeue(ctx, key, inputs, result, err)
}

// inputs returns Config.Inputs of a key. Without that, or if it fails, it is nil, and the key waits for the end of its pause.
func (c *Controller[K]) inputs(ctx context.Context, key K) (inputs any) {
	if c.cfg.Inputs == nil {
		return nil
	}
	defer func() {
		if r := recover(); r != nil {
			c.panicked(ctx, key, r)
			inputs = nil
		}
	}()
	inputs = c.cfg.Inputs(key)
	if inputs != nil && !reflect.ValueOf(inputs).Comparable() {
		panic(fmt.Sprintf("Inputs returned a value of type %T, which cannot be compared", inputs))
	}
	return inputs
}

// panicked logs that a function of the Config has panicked.
func (c *Controller[K]) panicked(ctx context.Context, key K, r any) {
	klog.FromContext(ctx).Error(nil, "Reconcile panicked", logging.KeyController, c.cfg.Name,
		logging.KeyKey, key, logging.KeyPanic, fmt.Sprint(r), logging.KeyStack, string(debug.Stack()))
}

// call runs Reconcile with its deadline and turns a panic into an error.
func (c *Controller[K]) call(ctx context.Context, key K) (result Result, err error) {
	if c.cfg.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.cfg.Timeout)
		defer cancel()
	}
	defer func() {
		if r := recover(); r != nil {
			c.panicked(ctx, key, r)
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return c.cfg.Reconcile(ctx, key)
}

// requeue decides when the key is reconciled again.
func (c *Controller[K]) requeue(ctx context.Context, key K, inputs any, result Result, err error) {
	logger := klog.FromContext(ctx).WithValues(logging.KeyController, c.cfg.Name, logging.KeyKey, key)
	switch {
	case err == nil:
		c.backoff.succeed(key, inputs, result.After)
		if result.After > 0 {
			c.queue.add(key, result.After)
		}
	case kube.IsStale(err):
		pause := c.backoff.fail(key, inputs, err, min(conflictRetry, c.cfg.Retry.Start), c.cfg.Retry.Max)
		logger.V(4).Info("Object changed meanwhile, trying again", logging.KeyDelay, pause, "err", err)
		c.queue.add(key, pause)
	case ctx.Err() != nil:
		logger.Info("Reconcile was stopped before it succeeded", logging.KeyReason, err.Error())
	default:
		start, longest := c.cfg.Retry.Start, c.cfg.Retry.Max
		switch {
		case errors.As(err, new(slowError)):
			start = longest
		case kube.IsTransient(err):
			longest = max(start, min(longest, transientRetry))
		}
		pause := c.backoff.fail(key, inputs, err, start, longest)
		logger.Error(err, "Reconcile did not succeed, trying again", logging.KeyDelay, pause)
		c.queue.add(key, pause)
	}
}

// watchAge logs when keys wait too long, until ctx is done.
func (c *Controller[K]) watchAge(ctx context.Context) {
	ticker := time.NewTicker(c.cfg.StuckAfter)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			if age := c.keys.oldest(now); age > c.cfg.StuckAfter {
				klog.FromContext(ctx).Info("Queue is backed up, all workers for these keys are busy", logging.KeyController, c.cfg.Name,
					logging.KeyDuration, age.Round(time.Second), logging.KeyCount, c.keys.Len(), logging.KeyWorkers, c.cfg.Workers)
			}
		}
	}
}
