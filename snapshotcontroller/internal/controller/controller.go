package controller

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/workqueue"

	"github.com/longshore-csi/longshore/csikit/events"
	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/keymutex"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// Config of a Controller. All fields without a default are required.
type Config struct {
	// Kube and Snapshots are the Kubernetes API.
	Kube      kube.Client
	Snapshots snapshotapi.Client
	// Events records events for users.
	Events events.Recorder

	// Workers is the number of objects of each queue that are processed concurrently.
	Workers int
	// Retry is the backoff after failures, per object.
	Retry flagset.Retry
	// KubeTimeout is the deadline of each call to the API server.
	KubeTimeout time.Duration
	// Drain is how long operations in progress may go on at the end. 0: reconcile.DefaultDrain.
	Drain time.Duration
	// Resync is the interval in which every object is reconciled without a change. 0: never.
	Resync time.Duration
	// Groups works on group snapshots as long as the server has their kinds, which are looked for in CRDInterval.
	Groups      bool
	CRDInterval time.Duration
	// Distributed labels contents with the node whose csi-snapshotter is in charge of the volume.
	Distributed bool
	// SourceVolumeMode records the mode of the volume on contents, by which csi-provisioner refuses to restore to another one.
	SourceVolumeMode bool

	// Operations measures snapshots from request to completion.
	Operations *Operations
	// Report counts snapshots and contents. nil: not counted.
	Report *Report
	// QueueMetrics measures the work queues. nil: not measured.
	QueueMetrics workqueue.MetricsProvider
	// Registerer takes the controller's own metrics. nil: none.
	Registerer prometheus.Registerer
}

// Controller works on the snapshots of a cluster.
type Controller struct {
	cfg Config

	snapshots *kube.Informer[*snapshotv1.VolumeSnapshot]
	contents  *kube.Informer[*snapshotv1.VolumeSnapshotContent]
	classes   *kube.Informer[*snapshotv1.VolumeSnapshotClass]
	claims    *kube.Informer[*corev1.PersistentVolumeClaim]
	pvs       *kube.Informer[*corev1.PersistentVolume]
	nodes     *nodes // nil: contents are not labelled

	singles    *pairs                        // VolumeSnapshots with their contents
	claimQueue *reconcile.Controller[string] // of claims that have the finalizer; since started
	locks      keymutex.Locks[string]        // by claim: held while its finalizer is added or removed
	creating   creating
	deleted    sync.Map // UIDs of objects that this instance has deleted, until they are gone
	groups     atomic.Pointer[groupsState]
	// groupsUnread: for groupsPatience it was not to be known which group snapshots there are.
	groupsUnread atomic.Bool
	// updatesClaims: the role allows to update claims, and not to patch them.
	updatesClaims atomic.Bool
	started       atomic.Bool
}

// New prepares a Controller, which starts with Run.
func New(cfg Config) *Controller {
	c := &Controller{cfg: cfg}
	c.snapshots = kube.NewInformer(cfg.Snapshots.VolumeSnapshots(""), kube.InformerOptions[*snapshotv1.VolumeSnapshot]{
		Name: "VolumeSnapshot", Resync: cfg.Resync, Transform: slimSnapshot, Encoding: snapshotapi.Encoding[*snapshotv1.VolumeSnapshot](), Index: indexSnapshots(),
	})
	c.contents = kube.NewInformer(cfg.Snapshots.VolumeSnapshotContents(), kube.InformerOptions[*snapshotv1.VolumeSnapshotContent]{
		Name: "VolumeSnapshotContent", Resync: cfg.Resync, Transform: slimContent, Encoding: snapshotapi.Encoding[*snapshotv1.VolumeSnapshotContent](), Index: indexContents(),
	})
	c.classes = kube.NewInformer(cfg.Snapshots.VolumeSnapshotClasses(), kube.InformerOptions[*snapshotv1.VolumeSnapshotClass]{
		Name: "VolumeSnapshotClass", Transform: slimClass,
	})
	c.claims = kube.NewInformer(cfg.Kube.PersistentVolumeClaims(""), kube.InformerOptions[*corev1.PersistentVolumeClaim]{
		Name: "PersistentVolumeClaim", Resync: cfg.Resync, Transform: slimClaim, Index: indexClaims(),
	})
	c.pvs = kube.NewInformer(cfg.Kube.PersistentVolumes(), kube.InformerOptions[*corev1.PersistentVolume]{
		Name: "PersistentVolume", Transform: slimPV(cfg.Distributed), Index: indexPVs(),
	})
	c.singles = c.newSnapshots()
	onChange(c.snapshots, ownerOfSnapshot, c.singles.ownerChanged)
	onChange(c.contents, contentOfSnapshot, c.snapshotContentChanged)
	c.classes.OnChange(c.classChanged)
	c.claims.OnChange(c.claimChanged)
	c.pvs.OnChange(c.pvChanged)
	if cfg.Distributed {
		c.nodes = newNodes(cfg.Kube)
		c.nodes.nodes.OnChange(c.nodes.nodeChanged)
		c.nodes.csiNodes.OnChange(c.nodes.csiNodeChanged)
	}
	return c
}

// newSnapshots returns the VolumeSnapshots with their contents.
func (c *Controller) newSnapshots() *pairs {
	k := snapshotKind()
	return &pairs{Controller: c, kind: k, complete: c.completeSnapshot, sourcesOf: c.claimOfSnapshot,
		objects: &store[*snapshotv1.VolumeSnapshot, *snapshotv1.VolumeSnapshotContent, *snapshotv1.VolumeSnapshotClass]{
			kind: k, owners: c.snapshots, contents: c.contents, classes: c.classes, timeout: c.cfg.KubeTimeout,
			ownersIn: func(namespace string) client[*snapshotv1.VolumeSnapshot] {
				return c.cfg.Snapshots.VolumeSnapshots(namespace)
			},
			contentsIn: c.cfg.Snapshots.VolumeSnapshotContents(),
			classesNow: func(ctx context.Context) (runtime.Object, error) {
				return c.cfg.Snapshots.VolumeSnapshotClasses().List(ctx, metav1.ListOptions{})
			},
			ownerOf: ownerOfSnapshot, contentOf: contentOfSnapshot, classOf: classOfSnapshots, encode: encodeSnapshotContent,
		},
	}
}

// Run works until ctx ends, then lets operations that have begun finish. It may be called once.
func (c *Controller) Run(ctx context.Context) (err error) {
	// Making the queues registers their metrics, so it is left to the instance that leads.
	if c.singles.queue, err = c.newQueue(QueueSnapshots, c.singles.reconcile, c.singles.inputs); err != nil {
		return err
	}
	if c.claimQueue, err = c.newQueue(QueueClaims, c.reconcileClaim, nil); err != nil {
		return err
	}
	defer c.cfg.Operations.reset()
	// The informers outlive the workers: an operation that finishes while the process stops must know the newest state.
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	informers, watching := errgroup.WithContext(watching)
	informers.Go(func() error { return c.snapshots.Run(watching) })
	informers.Go(func() error { return c.contents.Run(watching) })
	informers.Go(func() error { return c.classes.Run(watching) })
	informers.Go(func() error { return c.claims.Run(watching) })
	informers.Go(func() error { return c.pvs.Run(watching) })
	if c.nodes != nil {
		informers.Go(func() error { return c.nodes.nodes.Run(watching) })
		informers.Go(func() error { return c.nodes.csiNodes.Run(watching) })
	}
	c.started.Store(true)
	c.cfg.Report.begin()
	err = c.work(ctx, watching)
	c.cfg.Report.end()
	stop()
	return errors.Join(err, informers.Wait())
}

func (c *Controller) newQueue(name string, do func(context.Context, string) (reconcile.Result, error), inputs func(string) any) (*reconcile.Controller[string], error) {
	return reconcile.New(reconcile.Config[string]{
		Name: name, Reconcile: do, Inputs: inputs, Workers: c.cfg.Workers, Retry: c.cfg.Retry, Drain: c.cfg.Drain, Metrics: c.cfg.QueueMetrics, Registerer: c.cfg.Registerer,
	})
}

// work waits for the caches and runs the queues until ctx ends or the watches do.
func (c *Controller) work(ctx, watching context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(watching, cancel)()
	if c.nodes != nil {
		c.nodes.awaitDrivers(ctx)
	}
	err := kube.WaitAllSynced(ctx, c.informers()...)
	if ctx.Err() != nil {
		err = nil // stopped before there was anything to do
	} else if err != nil {
		cancel()
	}
	group := errgroup.Group{}
	group.Go(func() error { return c.singles.queue.Run(ctx) })
	group.Go(func() error { return c.claimQueue.Run(ctx) })
	if c.nodes != nil {
		group.Go(func() error { c.followNodes(ctx); return nil })
	}
	if c.cfg.Groups {
		group.Go(func() error { return c.followGroups(ctx) })
	}
	return errors.Join(err, group.Wait())
}

func (c *Controller) informers() []kube.Syncer {
	all := []kube.Syncer{c.snapshots, c.contents, c.classes, c.claims, c.pvs}
	if c.nodes != nil {
		all = append(all, c.nodes.nodes)
		if c.nodes.csiNodes.Unwatched() == nil {
			all = append(all, c.nodes.csiNodes)
		}
	}
	return all
}

// Synced returns an error while the controller runs and waits for the first lists of its caches; nothing is done until then. A controller that
// does not run yet waits for nothing.
func (c *Controller) Synced() error {
	if !c.started.Load() {
		return nil
	}
	return kube.CheckSynced(c.informers()...)
}

// kubeDeadline bounds a call to the API server.
func (c *Controller) kubeDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.cfg.KubeTimeout)
}
