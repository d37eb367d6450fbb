package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/util/workqueue"

	"github.com/longshore-csi/longshore/csikit/events"
	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// Config of a Controller. All fields without a default are required.
type Config struct {
	// Driver is the name of the CSI driver; contents of other drivers are skipped.
	Driver string
	// Snapshots is the Kubernetes API.
	Snapshots snapshotapi.Client
	// CSI and GroupCSI are the driver's controller service and group controller service.
	CSI      csi.ControllerClient
	GroupCSI csi.GroupControllerClient
	// Features returns the capabilities that the driver announces now; it is called before each decision.
	Features func() Features
	// Events records events for users.
	Events events.Recorder
	// Secrets reads the secrets of calls to the driver.
	Secrets *kube.SecretCache

	// Workers is the number of contents of snapshots processed concurrently, and separately of contents of group snapshots.
	Workers int
	// Retry is the backoff after failures, per content, and that of questions whether a snapshot is ready.
	Retry flagset.Retry
	// Timeout is the deadline of calls to the driver.
	Timeout time.Duration
	// KubeTimeout is the deadline of each call to the API server.
	KubeTimeout time.Duration
	// Drain is how long operations in progress may go on at the end. 0: reconcile.DefaultDrain.
	Drain time.Duration
	// Resync is the interval in which every content is reconciled without a change. 0: never.
	Resync time.Duration
	// SnapshotNames and GroupNames make the names that the driver gets.
	SnapshotNames, GroupNames Naming
	// ExtraMetadata adds the names of the objects to the parameters of a new snapshot.
	ExtraMetadata bool
	// Node restricts the contents to those of a node. Empty: those of all.
	Node string
	// Groups takes and deletes group snapshots, if driver and API server have them.
	Groups bool

	// OrphanInterval is the interval in which snapshots of the driver that no content names are looked for. 0: never.
	OrphanInterval time.Duration

	// Report counts contents. nil: not counted.
	Report *Report
	// QueueMetrics measures the work queues. nil: not measured.
	QueueMetrics workqueue.MetricsProvider
	// Registerer takes the controller's own metrics. nil: none.
	Registerer prometheus.Registerer
}

// Controller takes and deletes the snapshots of one driver.
type Controller struct {
	cfg       Config
	contents  *contents
	snapshots *loop
	groups    *groups // nil: off
	orphans   *orphans
	started   atomic.Bool // Run was called
}

// New prepares a Controller, which starts with Run.
func New(cfg Config) *Controller {
	c := &Controller{cfg: cfg}
	c.contents = newContents(&c.cfg)
	c.snapshots = &loop{names: contentNames(), objects: c.contents, cfg: &c.cfg, naming: cfg.SnapshotNames}
	if cfg.Groups {
		c.groups = newGroups(&c.cfg, c.contents, c.snapshots)
		c.contents.groups = c.groups.contents
	}
	c.orphans = &orphans{cfg: &c.cfg, known: c.all}
	return c
}

// all returns all contents of the driver.
func (c *Controller) all(yield func(record) bool) {
	for r := range c.snapshots.all() {
		if !yield(r) {
			return
		}
	}
	if c.groups == nil {
		return
	}
	for r := range c.groups.all() {
		if !yield(r) {
			return
		}
	}
}

// Run works until ctx ends, then lets calls that have begun finish. It may be called once.
func (c *Controller) Run(ctx context.Context) error {
	// Making the queues registers their metrics, so it is left to the instance that leads.
	err := c.snapshots.open(QueueContents)
	if c.groups != nil {
		err = errors.Join(err, c.groups.open(QueueGroupContents))
	}
	if err != nil {
		return err
	}
	c.started.Store(true)
	follow(c.snapshots, c.contents.objects, c.contents.classes, recordOf)

	// The informers outlive the workers: a call that finishes while the process stops must know the newest state of its content.
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	informers, watching := errgroup.WithContext(watching)
	informers.Go(func() error { return c.contents.objects.Run(watching) })
	informers.Go(func() error { return c.contents.classes.Run(watching) })
	if c.groups != nil {
		informers.Go(func() error { return c.groups.watch(watching) })
	}
	c.cfg.Report.show(c)
	err = c.work(ctx, watching)
	c.cfg.Report.show(nil)
	stop()
	return errors.Join(err, informers.Wait())
}

// work waits for the caches and runs the queues until ctx ends or the watches do.
func (c *Controller) work(ctx, watching context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(watching, cancel)()
	err := kube.WaitAllSynced(ctx, c.contents.objects, c.contents.classes)
	if ctx.Err() != nil {
		err = nil // stopped before there was anything to do
	} else if err != nil {
		cancel()
	}
	queues, ctx := errgroup.WithContext(ctx)
	queues.Go(func() error { return c.snapshots.queue.Run(ctx) })
	if c.groups != nil {
		queues.Go(func() error { return c.groups.queue.Run(ctx) })
	}
	if c.cfg.OrphanInterval > 0 {
		queues.Go(func() error { return c.orphans.run(ctx) })
	}
	return errors.Join(err, queues.Wait())
}

// open makes the queue.
func (l *loop) open(name string) (err error) {
	l.queue, err = reconcile.New(reconcile.Config[string]{
		Name:       name,
		Reconcile:  l.reconcile,
		Workers:    l.cfg.Workers,
		Retry:      l.cfg.Retry,
		Drain:      l.cfg.Drain,
		Metrics:    l.cfg.QueueMetrics,
		Registerer: l.cfg.Registerer,
	})
	return err
}

// follow queues contents when they change, or a class does that they need.
func follow[T, C kube.Object](l *loop, objects *kube.Informer[T], classes *kube.Informer[C], recordOf func(T) record) {
	var none T
	objects.OnChange(func(before, after T) {
		if any(after) == any(none) {
			l.memory.forget(before.GetName())
			l.count(before.GetName(), record{})
			return
		}
		r := recordOf(after)
		if r.driver == l.cfg.Driver && l.count(r.name, r) != doNothing {
			l.queue.Add(r.name)
		}
	})
	var noClass C
	classes.OnChange(func(_, after C) {
		if any(after) == any(noClass) {
			return
		}
		for _, content := range objects.ByIndex(indexClass, after.GetName()) {
			l.memory.retryNow(content.GetName())
			l.queue.Add(content.GetName())
		}
	})
}

// Synced returns an error while the controller runs and waits for the first lists of its caches; no snapshot is taken or deleted
// until then. A controller that does not run yet waits for nothing.
func (c *Controller) Synced() error {
	if !c.started.Load() {
		return nil
	}
	return kube.CheckSynced(c.contents.objects, c.contents.classes)
}

// DriverChanged retries all contents that wait.
func (c *Controller) DriverChanged(context.Context) {
	if !c.started.Load() {
		return
	}
	c.snapshots.wake()
	if c.groups != nil {
		c.groups.wake()
	}
}

func (l *loop) wake() { l.queue.WakeAll(l.waiting) }

// waiting returns the sorted names of the contents that wait, and ends their pauses.
func (l *loop) waiting() []string {
	var waiting []string
	for r := range l.all() {
		if plan(l.names, r, l.memory.of(r.name, r.uid)) != doNothing {
			waiting = append(waiting, r.name)
			l.memory.retryNow(r.name)
		}
	}
	slices.Sort(waiting)
	return waiting
}

// errNoGroups is a driver that cannot take group snapshots.
func errNoGroups(driver string) error {
	return fmt.Errorf("driver %q does not announce CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT", driver)
}
