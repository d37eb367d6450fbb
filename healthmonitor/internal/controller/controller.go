package controller

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/events"
	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/kube"
)

// indexHandle finds volumes by their handles.
const indexHandle = "handle"

// Config of a Controller. All fields are required.
type Config struct {
	// Driver is the name of the CSI driver; volumes of other drivers are skipped.
	Driver string
	// Kube is the Kubernetes API.
	Kube kube.Client
	// CSI is the driver's controller service.
	CSI csi.ControllerClient
	// Features returns the capabilities that the driver announces now; it is called before each sweep.
	Features func() Features
	// Events records events for users.
	Events events.Recorder
	// Metrics are those of the process.
	Metrics *Metrics

	// MonitorInterval is the time in which all volumes of a driver without a list are read once.
	MonitorInterval time.Duration
	// ListInterval is the pause between two lists.
	ListInterval time.Duration
	// MaxCalls is the maximum number of calls per second that read health.
	MaxCalls float64
	// Workers is the maximum number of such calls at a time.
	Workers int
	// Retry is the pause after a list that failed, up to ListInterval.
	Retry flagset.Retry
	// Timeout is the deadline of each call to the driver, KubeTimeout that of each call to the API server.
	Timeout, KubeTimeout time.Duration
	// WatchNodes reports nodes that are down to the claims that are in use there.
	WatchNodes bool
}

// Controller reads and reports the health of the volumes of one driver.
type Controller struct {
	cfg Config

	pvs     *kube.Informer[*corev1.PersistentVolume]
	claims  *kube.Informer[*corev1.PersistentVolumeClaim]
	pods    pods
	nodes   *nodes // nil without Config.WatchNodes
	records records
	refused pause
	limiter *rate.Limiter
	last    lastSweep
	// wake ends the pause between two sweeps.
	wake    chan struct{}
	started atomic.Bool // Run was called
}

// New prepares a Controller, which starts with Run.
func New(cfg Config) *Controller {
	c := &Controller{
		cfg: cfg, records: records{all: map[types.UID]*record{}, pods: map[types.UID]string{}}, limiter: rate.NewLimiter(rate.Limit(cfg.MaxCalls), 1), wake: make(chan struct{}, 1),
	}
	c.pvs = kube.NewInformer(cfg.Kube.PersistentVolumes(), kube.InformerOptions[*corev1.PersistentVolume]{
		Name: "PersistentVolume", Transform: slimPV(cfg.Driver),
		Index: map[string]func(*corev1.PersistentVolume) []string{
			indexHandle: func(pv *corev1.PersistentVolume) []string {
				if !isBound(pv) {
					return nil
				}
				return []string{pv.Spec.CSI.VolumeHandle}
			},
		},
	})
	c.claims = kube.NewInformer(cfg.Kube.PersistentVolumeClaims(""), kube.InformerOptions[*corev1.PersistentVolumeClaim]{
		Name: "PersistentVolumeClaim", Transform: slimClaim,
	})
	c.pvs.OnChange(c.volumeChanged)
	c.pods.make, c.pods.patience = c.newPods, cfg.KubeTimeout
	if cfg.WatchNodes {
		c.nodes = c.newNodes()
	}
	return c
}

// volumeChanged forgets a volume that is not bound to its claim any more.
func (c *Controller) volumeChanged(before, after *corev1.PersistentVolume) {
	if !isBound(before) || isBound(after) && after.Spec.ClaimRef.UID == before.Spec.ClaimRef.UID {
		return
	}
	ref := before.Spec.ClaimRef
	c.cfg.Metrics.setStatus(ref.Namespace, ref.Name, categoriesOf(c.records.forget(ref.UID)), nil)
}

// Run works until ctx ends. It may be called once.
func (c *Controller) Run(ctx context.Context) error {
	c.started.Store(true)
	defer c.cfg.Metrics.status.Reset()
	group, ctx := errgroup.WithContext(ctx)
	run := func(run func(context.Context) error) { group.Go(func() error { return run(ctx) }) }
	c.pods.run = run
	run(c.pvs.Run)
	run(c.claims.Run)
	if c.nodes != nil {
		run(c.nodes.informer.Run)
	}
	run(c.work)
	return group.Wait()
}

// work waits for the caches, then reads health until ctx ends.
func (c *Controller) work(ctx context.Context) error {
	if kube.WaitAllSynced(ctx, c.pvs, c.claims) != nil {
		return nil //nolint:nilerr // ctx has ended
	}
	c.restore(ctx)
	group, ctx := errgroup.WithContext(ctx)
	if c.nodes != nil {
		group.Go(func() error { return c.watchNodes(ctx) })
	}
	group.Go(func() error {
		for ctx.Err() == nil {
			c.sweep(ctx)
		}
		return nil
	})
	return group.Wait()
}

// wait returns when d is over, or woken, which may be nil, has a value. It reports false if ctx ends first.
func wait(ctx context.Context, woken <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-woken:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// Synced returns an error while the controller runs and waits for the first lists of its caches; no health is read until then.
func (c *Controller) Synced() error {
	if !c.started.Load() {
		return nil
	}
	return kube.CheckSynced(c.pvs, c.claims)
}

// DriverChanged lets the driver be asked at once: it has come back, or announces other capabilities.
func (c *Controller) DriverChanged(context.Context) {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}
