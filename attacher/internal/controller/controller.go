package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/workqueue"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/reconcile"
)

// Names of the work queues in metrics and logs.
const (
	QueueAttach = "csi-attacher-va"
	QueueDetach = "csi-attacher-va-detach"
	QueuePV     = "csi-attacher-pv"
)

// Names of the informers' indexes.
const (
	indexPV   = "pv"
	indexNode = "node"
)

// Recorder takes events; repeating one is its business.
type Recorder interface {
	Warning(obj runtime.Object, reason, message string)
}

// Config says what a Controller works on and how. All fields without a default are required.
type Config struct {
	// Driver is the name of the CSI driver; VolumeAttachments of others are left alone.
	Driver string
	// Kube is the Kubernetes API.
	Kube kube.Client
	// CSI is the driver's controller service.
	CSI csi.ControllerClient
	// Features returns what the driver can do now; it is asked before each decision.
	Features func() Features
	// Events takes what users should read about.
	Events Recorder

	// Workers is how many attach, and as many detach, operations run at a time.
	Workers int
	// Retry is the pause after failures, per VolumeAttachment.
	Retry flagset.Retry
	// CSITimeout is the deadline of each call to the driver.
	CSITimeout time.Duration
	// KubeTimeout is the deadline of each call to the API server.
	KubeTimeout time.Duration
	// NodeRetry is how often a node without the driver is looked at again, in
	// case it publishes its ID by annotation only. A CSINode event does not wait for it.
	NodeRetry time.Duration
	// Resync is how often every object is looked at without a change. 0: never.
	Resync time.Duration
	// ReconcileSync is the pause between two comparisons with the driver's list. 0: never.
	ReconcileSync time.Duration
	// MaxEntries is the page size of ListVolumes. 0: the driver's choice.
	MaxEntries int32
	// DefaultFSType is used for volumes that name no file system. May be empty.
	DefaultFSType string
	// ErrorCode puts the gRPC code of a failure into the status.
	ErrorCode bool

	// QueueMetrics measures the work queues. nil: not measured.
	QueueMetrics workqueue.MetricsProvider
	// Registerer takes the controller's own metrics. nil: none.
	Registerer prometheus.Registerer
}

// Controller attaches and detaches the volumes of one driver.
type Controller struct {
	cfg       Config
	finalizer string

	vas      *kube.Informer[*storagev1.VolumeAttachment]
	pvs      *kube.Informer[*corev1.PersistentVolume]
	csiNodes *kube.Informer[*storagev1.CSINode]

	attachQueue, detachQueue, pvQueue *reconcile.Controller[string]

	busy   busy
	forced forced
	resync resync
}

// New prepares a Controller, which starts with Run.
func New(cfg Config) *Controller {
	c := &Controller{cfg: cfg, finalizer: FinalizerName(cfg.Driver)}
	c.resync.corrections = newCorrections(cfg.Registerer, cfg.Driver)
	c.vas = kube.NewInformer(cfg.Kube.VolumeAttachments(), kube.InformerOptions[*storagev1.VolumeAttachment]{
		Name:      "VolumeAttachment",
		Resync:    cfg.Resync,
		Transform: slimVA(cfg.Driver),
		Index:     indexVA(cfg.Driver),
	})
	c.pvs = kube.NewInformer(cfg.Kube.PersistentVolumes(), kube.InformerOptions[*corev1.PersistentVolume]{
		Name:      "PersistentVolume",
		Resync:    cfg.Resync,
		Transform: kube.SlimPV(cfg.Driver, kube.Keep{Labels: []string{}, Annotations: []string{}}),
	})
	c.csiNodes = kube.NewInformer(cfg.Kube.CSINodes(), kube.InformerOptions[*storagev1.CSINode]{
		Name:      "CSINode",
		Transform: slimCSINode(cfg.Driver),
	})
	c.vas.OnChange(c.vaChanged)
	c.pvs.OnChange(c.pvChanged)
	c.csiNodes.OnChange(c.csiNodeChanged)
	return c
}

// makeQueues makes the queues, which have goroutines and thus must be run to be ended.
func (c *Controller) makeQueues() error {
	var errs []error
	queue := func(name string, do func(context.Context, string) (reconcile.Result, error)) *reconcile.Controller[string] {
		q, err := reconcile.New(reconcile.Config[string]{
			Name:       name,
			Reconcile:  do,
			Workers:    c.cfg.Workers,
			Retry:      c.cfg.Retry,
			Metrics:    c.cfg.QueueMetrics,
			Registerer: c.cfg.Registerer,
		})
		errs = append(errs, err)
		return q
	}
	c.attachQueue = queue(QueueAttach, c.exclusively(stepAttach, c.attachOrMark))
	c.detachQueue = queue(QueueDetach, c.exclusively(stepDetach, c.detachOrRelease))
	c.pvQueue = queue(QueuePV, c.reconcilePV)
	return errors.Join(errs...)
}

// Run works until ctx ends, then lets operations that have begun finish. It may be called once.
func (c *Controller) Run(ctx context.Context) error {
	if err := c.makeQueues(); err != nil {
		return err
	}
	// The informers outlive the workers: an operation that finishes while the
	// process stops still wants to know whether its object has changed.
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	informers, watching := errgroup.WithContext(watching)
	informers.Go(func() error { return c.vas.Run(watching) })
	informers.Go(func() error { return c.pvs.Run(watching) })
	informers.Go(func() error { return c.csiNodes.Run(watching) })

	err := c.work(ctx, watching)
	stop()
	return errors.Join(err, informers.Wait())
}

// work waits for the caches and runs the queues until ctx ends or the watches do.
func (c *Controller) work(ctx, watching context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(watching, cancel)()
	err := c.waitSynced(ctx)
	if ctx.Err() != nil {
		err = nil // stopped before there was anything to do
	}
	if err != nil {
		cancel()
	}
	workers, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{c.attachQueue.Run, c.detachQueue.Run, c.pvQueue.Run, c.runResync} {
		workers.Go(func() error { return run(ctx) })
	}
	return errors.Join(err, workers.Wait())
}

// waitSynced waits for all three caches. Without the CSINodes, a restart would
// report nodes without the driver that are perfectly well.
func (c *Controller) waitSynced(ctx context.Context) error {
	for _, wait := range []func(context.Context) error{c.csiNodes.WaitSynced, c.pvs.WaitSynced, c.vas.WaitSynced} {
		if err := wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// WakeAll looks at every VolumeAttachment of the driver at once, whatever pause it is
// in: the driver has come back, possibly with other features.
func (c *Controller) WakeAll() {
	for _, va := range c.vas.List() {
		if c.ours(va) {
			c.wake(va)
		}
	}
}

// ours reports whether va belongs to this driver.
func (c *Controller) ours(va *storagev1.VolumeAttachment) bool {
	return va.Spec.Attacher == c.cfg.Driver
}

// kubeDeadline bounds a call to the API server.
func (c *Controller) kubeDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.cfg.KubeTimeout)
}

// csiDeadline bounds a call to the driver.
func (c *Controller) csiDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.cfg.CSITimeout)
}

// lookupError tells which object was read in vain.
func lookupError(kind, name string, err error) error {
	return fmt.Errorf("get %s %q: %w", kind, name, err)
}
