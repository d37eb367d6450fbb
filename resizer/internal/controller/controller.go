package controller

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/util/workqueue"

	"github.com/longshore-csi/longshore/csikit/events"
	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/reconcile"
)

// Config of a Controller. All fields without a default are required.
type Config struct {
	// Driver is the name of the CSI driver; claims of other drivers are skipped.
	Driver string
	// Kube is the Kubernetes API.
	Kube kube.Client
	// CSI is the driver's controller service.
	CSI csi.ControllerClient
	// Features returns the capabilities that the driver announces now; it is called before each decision.
	Features func() Features
	// Events records events for users.
	Events events.Recorder
	// Secrets reads the secrets of calls to the driver.
	Secrets *kube.SecretCache

	// Workers is the number of claims processed concurrently.
	Workers int
	// Retry is the backoff after failures, per claim and operation. Its Max is also the pause before what the driver calls
	// infeasible is tried again.
	Retry flagset.Retry
	// ResizeTimeout and ModifyTimeout are the deadlines of calls to the driver.
	ResizeTimeout, ModifyTimeout time.Duration
	// KubeTimeout is the deadline of each call to the API server.
	KubeTimeout time.Duration
	// Drain is how long operations in progress may go on at the end. 0: reconcile.DefaultDrain.
	Drain time.Duration
	// Resync is the interval in which every claim is reconciled without a change. 0: never.
	Resync time.Duration
	// WaitUntilUnused postpones an expansion that the driver does not do while the volume is in use.
	WaitUntilUnused bool
	// AttributesClasses applies VolumeAttributesClasses.
	AttributesClasses bool
	// ExtraMetadata adds the names of claim and volume to the mutable parameters.
	ExtraMetadata bool
	// AnnotatePreResize puts AnnotationPreResize on volumes that the node has to expand.
	AnnotatePreResize bool

	// QueueMetrics measures the work queue. nil: not measured.
	QueueMetrics workqueue.MetricsProvider
	// Registerer takes the controller's own metrics. nil: none.
	Registerer prometheus.Registerer
}

// Controller expands and modifies the volumes of one driver.
type Controller struct {
	cfg Config

	claims *kube.Informer[*corev1.PersistentVolumeClaim]
	pvs    *kube.Informer[*corev1.PersistentVolume]
	// Kinds that few claims need, and that the role may not grant.
	classes     onDemand[*storagev1.VolumeAttributesClass]
	pods        onDemand[*corev1.Pod]
	attachments onDemand[*storagev1.VolumeAttachment]

	queue  *reconcile.Controller[string] // since started
	memory memory
	// oneByOne: the driver refuses a call while another one for the volume runs.
	oneByOne atomic.Bool
	started  atomic.Bool // Run was called
}

// New prepares a Controller, which starts with Run.
func New(cfg Config) *Controller {
	c := &Controller{cfg: cfg}
	c.claims = kube.NewInformer(cfg.Kube.PersistentVolumeClaims(""), kube.InformerOptions[*corev1.PersistentVolumeClaim]{
		Name: "PersistentVolumeClaim", Resync: cfg.Resync, Transform: slimClaim, Index: indexClaims(),
	})
	c.pvs = kube.NewInformer(cfg.Kube.PersistentVolumes(), kube.InformerOptions[*corev1.PersistentVolume]{
		Name: "PersistentVolume", Transform: slimPV(cfg.Driver),
	})
	c.classes.make = func() *kube.Informer[*storagev1.VolumeAttributesClass] { return c.newClasses() }
	c.pods.make = func() *kube.Informer[*corev1.Pod] { return c.newPods() }
	c.attachments.make = func() *kube.Informer[*storagev1.VolumeAttachment] { return c.newAttachments() }
	c.claims.OnChange(c.claimChanged)
	c.pvs.OnChange(c.pvChanged)
	return c
}

// Run works until ctx ends, then lets operations that have begun finish. It may be called once.
func (c *Controller) Run(ctx context.Context) (err error) {
	// Making the queue registers its metrics, so it is left to the instance that leads.
	c.queue, err = reconcile.New(reconcile.Config[string]{
		Name:       QueueName(c.cfg.Driver),
		Reconcile:  c.reconcile,
		Class:      c.class,
		Workers:    c.cfg.Workers,
		Retry:      c.cfg.Retry,
		Drain:      c.cfg.Drain,
		Metrics:    c.cfg.QueueMetrics,
		Registerer: c.cfg.Registerer,
	})
	if err != nil {
		return err
	}
	c.started.Store(true)
	// The informers outlive the workers: an operation that finishes while the process stops must know the newest state of its claim.
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	informers, watching := errgroup.WithContext(watching)
	informers.Go(func() error { return c.claims.Run(watching) })
	informers.Go(func() error { return c.pvs.Run(watching) })
	run := func(run func(context.Context) error) { informers.Go(func() error { return run(watching) }) }
	c.classes.run, c.pods.run, c.attachments.run = run, run, run

	err = c.work(ctx, watching)
	stop()
	return errors.Join(err, informers.Wait())
}

// class lets expanding and modifying have workers of their own: a volume that is full does not wait until a fleet has another class.
func (c *Controller) class(key string) reconcile.Class {
	if v, ok := c.find(key); ok && c.expandsNext(v, c.memory.of(key, v.claim.UID)) {
		return reconcile.Class{Pool: "expand"}
	}
	return reconcile.Class{Pool: "modify"}
}

// work waits for the caches and runs the queue until ctx ends or the watches do.
func (c *Controller) work(ctx, watching context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(watching, cancel)()
	err := kube.WaitAllSynced(ctx, c.claims, c.pvs)
	if ctx.Err() != nil {
		err = nil // stopped before there was anything to do
	} else if err != nil {
		cancel()
	}
	return errors.Join(err, c.queue.Run(ctx))
}

// Synced returns an error while the controller runs and waits for the first lists of its caches; nothing is expanded or modified
// until then. A controller that does not run yet waits for nothing.
func (c *Controller) Synced() error {
	if !c.started.Load() {
		return nil
	}
	return kube.CheckSynced(c.claims, c.pvs)
}

// kubeDeadline bounds a call to the API server.
func (c *Controller) kubeDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.cfg.KubeTimeout)
}

// find returns a claim with its volume, if the volume is the driver's.
func (c *Controller) find(key string) (volume, bool) {
	namespace, name, _ := strings.Cut(key, "/")
	claim, ok := c.claims.Get(namespace, name)
	if !ok || claim.Spec.VolumeName == "" {
		return volume{}, false
	}
	pv, ok := c.pvs.Get("", claim.Spec.VolumeName)
	if !ok {
		return volume{}, false // it wakes the claim when it comes
	}
	return newVolume(c.cfg.Driver, claim, pv)
}
