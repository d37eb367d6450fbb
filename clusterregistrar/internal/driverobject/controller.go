package driverobject

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/reconcile"
)

const (
	// resync is the interval in which the object is looked at without a change, so that there is always an event of a problem that lasts.
	resync = 10 * time.Minute
	// writePause is the least time between two writes of the object: others may edit it again and again, or be instances with other flags.
	writePause = 10 * time.Second
	// confirmPause is the time after which a driver that does not announce PUBLISH_UNPUBLISH_VOLUME is asked again, before an object is created.
	confirmPause = 5 * time.Second
)

// errConflict is a server-side apply that was refused because of other field managers. Its text has no times, which that of the API server has.
var errConflict = errors.New("other field managers have changed fields since the object was read")

// Controller keeps the object of one driver.
type Controller struct {
	*Shared

	drivers *kube.Informer[*storagev1.CSIDriver]
	queue   *reconcile.Controller[string] // since started
	started atomic.Bool

	// The worker, of which there is one, has these.
	seen     memory
	put      time.Time // the last write
	noAttach time.Time // when an object with attachRequired: false was first to be created
}

// New prepares a Controller, which starts with Run.
func New(shared *Shared) *Controller {
	c := &Controller{Shared: shared}
	c.drivers = kube.NewInformer(c.cfg.Kube.CSIDrivers(), kube.InformerOptions[*storagev1.CSIDriver]{
		Name: "CSIDriver", FieldSelector: "metadata.name=" + c.cfg.Driver, Resync: resync,
	})
	c.drivers.OnChange(func(_, _ *storagev1.CSIDriver) { c.queue.Add(c.cfg.Driver) })
	return c
}

// Run works until ctx ends, then lets a write that has begun finish. It may be called once.
func (c *Controller) Run(ctx context.Context) (err error) {
	c.queue, err = reconcile.New(reconcile.Config[string]{
		Name: QueueName, Reconcile: c.reconcile, Inputs: c.inputs, Retry: c.cfg.Retry, Drain: c.cfg.Drain,
		Metrics: c.cfg.QueueMetrics, Registerer: c.cfg.Registerer,
	})
	if err != nil {
		return err
	}
	c.started.Store(true)
	c.note(errNotWritten)
	defer func() { // another instance may change the object
		c.note(nil)
		c.set(nil)
	}()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.drivers.Run(ctx) })
	group.Go(func() error {
		if err := kube.WaitAllSynced(ctx, c.drivers); err != nil && ctx.Err() == nil {
			return err
		}
		c.queue.Add(c.cfg.Driver)
		return c.queue.Run(ctx)
	})
	return group.Wait()
}

// Synced returns an error while the controller waits for the first list.
func (c *Controller) Synced() error {
	if !c.started.Load() {
		return nil
	}
	return kube.CheckSynced(c.drivers)
}

// State returns a snapshot, which is a State.
func (c *Controller) State() any {
	s := c.state()
	if c.started.Load() {
		s.Queue = new(c.queue.State())
	}
	return s
}

// DriverChanged compares the object with what the driver announces now.
func (c *Controller) DriverChanged(context.Context) {
	if c.started.Load() {
		c.queue.Wake(c.cfg.Driver)
	}
}

// inputs is what the work depends on: the version of the object, and what the driver announces.
func (c *Controller) inputs(driver string) any {
	version := ""
	if live, ok := c.drivers.Get("", driver); ok {
		version = live.ResourceVersion
	}
	return [2]any{version, c.features()}
}

// reconcile brings the object to what it shall be.
func (c *Controller) reconcile(ctx context.Context, _ string) (reconcile.Result, error) {
	wait, err := c.keep(ctx)
	if wait == 0 {
		c.note(err)
	}
	if kube.IsRefused(err) || errors.Is(err, errConflict) {
		c.cfg.Events.Warning(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: c.cfg.Driver, UID: c.seen.uid}}, ReasonFailed, err.Error())
	}
	return reconcile.Result{After: wait}, err
}

// keep writes the object if it is not as it shall be. wait is the time after which it must be called again, 0 for never.
func (c *Controller) keep(ctx context.Context) (wait time.Duration, err error) {
	live, err := c.get(ctx)
	if err != nil || live != nil && live.DeletionTimestamp != nil { // the watch brings the end of an object that is being deleted
		return 0, err
	}
	if wait, err := c.confirm(ctx, live); wait > 0 || err != nil {
		return wait, err
	}
	features := c.features()
	spec, err := wanted(c.cfg.Flags, features)
	if err != nil {
		return 0, nil //nolint:nilerr // Check reports it, and DriverChanged brings other answers
	}
	if live != nil {
		c.seen = c.seen.remember(live)
	}
	p := decide(fieldsOf(spec), live, c.seen)
	if p.apply {
		if left := writePause - time.Since(c.put); left > 0 {
			return left, nil
		}
		if live, err = c.apply(ctx, live, &p); err != nil {
			return 0, err
		}
	}
	p.capacity(spec, features)
	c.report(ctx, live, &p)
	return 0, nil
}

// confirm asks a driver again that announces no PUBLISH_UNPUBLISH_VOLUME, before an object is created that says so: the field cannot be changed, and a driver
// may announce too little while it is starting.
func (c *Controller) confirm(ctx context.Context, live *storagev1.CSIDriver) (wait time.Duration, err error) {
	features := c.features()
	if live != nil || c.cfg.Flags.AttachRequired != nil || !features.Controller || features.Publish {
		c.noAttach = time.Time{}
		return 0, nil
	}
	if c.noAttach.IsZero() {
		c.noAttach = time.Now()
	}
	if left := confirmPause - time.Since(c.noAttach); left > 0 {
		return left, nil
	}
	if err := c.reread(ctx); err != nil {
		c.noAttach = time.Time{}
		return 0, fmt.Errorf("ask driver %q again whether it attaches volumes: %w", c.cfg.Driver, err)
	}
	return 0, nil
}

// get reads the object from the API server, with managedFields, which the informer does not keep. It is nil if there is none.
func (c *Controller) get(ctx context.Context) (*storagev1.CSIDriver, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.KubeTimeout)
	defer cancel()
	live, err := c.cfg.Kube.CSIDrivers().Get(ctx, c.cfg.Driver, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // there is no object, and that is no error
	}
	if err != nil {
		return nil, fmt.Errorf("get CSIDriver %q: %w", c.cfg.Driver, err)
	}
	return live, nil
}

// apply writes the object and returns it as it is stored.
func (c *Controller) apply(ctx context.Context, live *storagev1.CSIDriver, p *plan) (*storagev1.CSIDriver, error) {
	configuration, err := p.configuration(c.cfg.Driver, live)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.KubeTimeout)
	defer cancel()
	stored, err := c.cfg.Kube.CSIDrivers().Patch(ctx, c.cfg.Driver, types.ApplyPatchType, configuration, metav1.PatchOptions{FieldManager: Manager, Force: &p.force})
	if apierrors.HasStatusCause(err, metav1.CauseTypeFieldManagerConflict) {
		err = errConflict
	}
	if err != nil {
		return nil, fmt.Errorf("apply CSIDriver %q: %w", c.cfg.Driver, err)
	}
	c.put = time.Now()
	c.seen = c.seen.remember(stored)
	p.stored(stored)
	klog.FromContext(ctx).Info("Applied the CSIDriver object", logging.KeyDriver, c.cfg.Driver, "fields", slices.Sorted(maps.Keys(p.fields)), "created", live == nil)
	return stored, nil
}

// report records the restored fields and the problems: log, events, metrics and state.
func (c *Controller) report(ctx context.Context, live *storagev1.CSIDriver, p *plan) {
	logger := klog.FromContext(ctx).WithValues(logging.KeyDriver, c.cfg.Driver)
	c.restored.Add(float64(len(p.restored)))
	for _, message := range p.restored {
		logger.Info("Restored a field of the CSIDriver object", logging.KeyReason, message)
		c.cfg.Events.Normal(live, ReasonRestored, message)
	}
	before := c.set(p.problems)
	for _, problem := range p.problems {
		if !slices.Contains(before, problem) {
			logger.Error(nil, "A field of the CSIDriver object differs", logging.KeyReason, problem.Message)
		}
		c.cfg.Events.Warning(live, problem.Reason, problem.Message)
	}
}
