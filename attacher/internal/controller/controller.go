package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
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
	QueueVA = "csi-attacher-va"
	QueuePV = "csi-attacher-pv"
)

// Names of the informers' indexes.
const (
	indexPV     = "pv"
	indexNode   = "node"
	indexNodeID = "node-id"
)

// Recorder records events, and limits repetitions.
type Recorder interface {
	Warning(obj runtime.Object, reason, message string)
}

// Config of a Controller. All fields without a default are required.
type Config struct {
	// Driver is the name of the CSI driver; VolumeAttachments of other drivers are skipped.
	Driver string
	// Kube is the Kubernetes API.
	Kube kube.Client
	// CSI is the driver's controller service.
	CSI csi.ControllerClient
	// Features returns the capabilities that the driver announces now; it is called before each decision.
	Features func() Features
	// Events records events for users.
	Events Recorder
	// Secrets reads the secrets of publish calls.
	Secrets *kube.SecretCache

	// Workers is the number of attach operations, and separately of detach operations, in progress at a time. One node takes at most half
	// of them.
	Workers int
	// Retry is the backoff after failures, per VolumeAttachment.
	Retry flagset.Retry
	// CSITimeout is the deadline of each call to the driver.
	CSITimeout time.Duration
	// KubeTimeout is the deadline of each call to the API server.
	KubeTimeout time.Duration
	// Drain is how long operations in progress may go on at the end. 0: reconcile.DefaultDrain.
	Drain time.Duration
	// NodeRetry is the pause before a Node without the driver is read again, in case its ID is published by annotation only. It
	// doubles up to Retry.Max. A registration in the CSINode ends it.
	NodeRetry time.Duration
	// Resync is the interval in which every object is reconciled without a change. 0: never.
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
	// Shared outlives the Controller. nil: NewShared makes it of the other fields.
	Shared *Shared
}

// Controller attaches and detaches the volumes of one driver.
type Controller struct {
	*Shared

	cfg       Config
	finalizer string

	vas      *kube.Informer[*storagev1.VolumeAttachment]
	pvs      *kube.Informer[*corev1.PersistentVolume]
	csiNodes *kube.Informer[*storagev1.CSINode]

	vaQueue, pvQueue *reconcile.Controller[string] // since started

	started atomic.Bool // Run was called

	nodes  nodeLookups
	forced sync.Map // UIDs of VolumeAttachments that must be attached again although they say attached
	resync resync
}

// New prepares a Controller, which starts with Run.
func New(cfg Config) *Controller {
	c := &Controller{Shared: cfg.Shared, cfg: cfg, finalizer: FinalizerName(cfg.Driver)}
	if c.Shared == nil {
		c.Shared = NewShared(cfg)
	}
	c.nodes.first, c.nodes.longest = cfg.NodeRetry, max(cfg.NodeRetry, cfg.Retry.Max)
	c.vas = kube.NewInformer(cfg.Kube.VolumeAttachments(), kube.InformerOptions[*storagev1.VolumeAttachment]{
		Name:      "VolumeAttachment",
		Resync:    cfg.Resync,
		Transform: slimVA(cfg.Driver),
		Index:     indexVA(cfg.Driver),
	})
	c.pvs = kube.NewInformer(cfg.Kube.PersistentVolumes(), kube.InformerOptions[*corev1.PersistentVolume]{
		Name:      "PersistentVolume",
		Resync:    cfg.Resync,
		Transform: slimPV(cfg.Driver),
	})
	c.csiNodes = kube.NewInformer(cfg.Kube.CSINodes(), kube.InformerOptions[*storagev1.CSINode]{
		Name:      "CSINode",
		Transform: slimCSINode(cfg.Driver),
		Index: map[string]func(*storagev1.CSINode) []string{indexNodeID: func(node *storagev1.CSINode) []string {
			if id := csiNodeID(node, cfg.Driver); id != "" {
				return []string{id}
			}
			return nil
		}},
	})
	c.vas.OnChange(c.vaChanged)
	c.pvs.OnChange(c.pvChanged)
	c.csiNodes.OnChange(c.csiNodeChanged)
	return c
}

// makeQueues makes the queues. That registers their metrics, so it is left to Run.
func (c *Controller) makeQueues() error {
	config := reconcile.Config[string]{
		Name: QueueVA, Reconcile: c.reconcileVA, Inputs: c.inputs, Class: c.class,
		Workers: c.cfg.Workers, Retry: c.cfg.Retry, Drain: c.cfg.Drain, Metrics: c.cfg.QueueMetrics, Registerer: c.cfg.Registerer,
	}
	var err1, err2 error
	c.vaQueue, err1 = reconcile.New(config)
	config.Name, config.Reconcile, config.Inputs, config.Class = QueuePV, c.reconcilePV, nil, nil
	c.pvQueue, err2 = reconcile.New(config)
	return errors.Join(err1, err2)
}

// Run works until ctx ends, then lets operations that have begun finish. It may be called once.
func (c *Controller) Run(ctx context.Context) error {
	if err := c.makeQueues(); err != nil {
		return err
	}
	c.started.Store(true)
	// The informers outlive the workers: an operation that finishes while the process stops must know whether its object
	// has changed.
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
	err := kube.WaitAllSynced(ctx, c.caches()...)
	switch {
	case ctx.Err() != nil:
		err = nil // stopped before there was anything to do
	case err != nil:
		cancel()
	default:
		c.logPublish(ctx)
	}
	workers, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{c.vaQueue.Run, c.pvQueue.Run, c.runResync} {
		workers.Go(func() error { return run(ctx) })
	}
	return errors.Join(err, workers.Wait())
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

// lookupError names the object that could not be read.
func lookupError(kind, name string, err error) error {
	return fmt.Errorf("get %s %q: %w", kind, name, err)
}
