// Package claim turns claims into volumes. Each phase has a file: provision.go asks the driver for a volume, save.go writes the PersistentVolume, undo.go deletes a volume that came out unwanted, settle.go goes on with those of another process, reschedule.go sends a claim
// back to the scheduler. The decisions are pure functions in plan.go, compete.go and outcome.go; the other files do what was decided. Package source
// keeps what volumes are made from, and package release deletes the volumes that claims have left.
//
// Use package provisioner to run it: this package expects a driver that is ready and leadership.
package claim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/events"
	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/migration"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/provisioner/internal/backend"
	"github.com/longshore-csi/longshore/provisioner/internal/capabilities"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapi"
	"github.com/longshore-csi/longshore/provisioner/internal/records"
	"github.com/longshore-csi/longshore/provisioner/internal/release"
	"github.com/longshore-csi/longshore/provisioner/internal/source"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
	"github.com/longshore-csi/longshore/topology"
)

// Limits that no flag changes.
const (
	// saveWorkers is the number of PersistentVolumes that are saved again at a time.
	saveWorkers = 4
	// saveRetryStart and saveRetryMax are the pauses between attempts to save a PersistentVolume.
	saveRetryStart, saveRetryMax = 500 * time.Millisecond, time.Minute
	// topologySettle is how long a change of the topology settles before waiting claims are looked at.
	topologySettle = 3 * time.Second
	// registerGrace is how long a claim waits for the driver to register on the selected node.
	registerGrace = 5 * time.Minute
)

// keyPlugin is the log key of the name of an in-tree plugin.
const keyPlugin = "plugin"

// Settings are the options of the provisioner that the controller acts on.
type Settings struct {
	// Naming makes the names of volumes.
	Naming volume.Naming
	// Timeout is the deadline of one call to the driver.
	Timeout time.Duration
	// KubeTimeout is the deadline of one request to the API server.
	KubeTimeout time.Duration
	// Workers is the number of claims, and separately of volume deletions, processed concurrently.
	Workers int
	// Retry is how failed work is repeated; its Max is also the pause after an infeasible request.
	Retry flagset.Retry
	// Topology says which topology is sent to drivers that know topology.
	Topology topology.Policy
	// ExtraCreateMetadata adds the names of claim and volume to the parameters.
	ExtraCreateMetadata bool
	// DefaultFSType is the file system of volumes whose class names none.
	DefaultFSType string
	// PublishReadOnly marks volumes read-only whose only access mode is ReadOnlyMany.
	PublishReadOnly bool
	// Identity identifies the process that has made a volume.
	Identity string
	// Features are the features that are on.
	Features capabilities.Features
	// SourceWorkers is the number of workers that remove protection finalizers from clone and snapshot sources.
	SourceWorkers int
	// ModeConversion allows all snapshots to be restored in another volume mode.
	ModeConversion bool
	// Node is the node that is provisioned for; the zero value provisions for all.
	Node view.Node
	// Drain is how long running calls may take after the end of the context of Run, which returns within seconds after that.
	Drain time.Duration
}

// Config is what a Controller works with. All fields are required but Plugin, Competition, Capacity, Queues, Ages and Metrics.
type Config struct {
	// Info returns the name and the capabilities of the driver, as last read.
	Info func() *csiclient.Info
	// Driver is the driver's controller service.
	Driver csi.ControllerClient
	// Kube is the API, and View what is known of it. The view must know the node of the settings, have the shape of the driver
	// (capabilities.ShapeOf), be started before Run is called and not be stopped before Run has returned.
	Kube kubeapi.Client
	View *view.View
	// Secrets reads the secrets of requests.
	Secrets *kube.SecretCache
	// Plugin is the in-tree plugin that the driver replaces, the same as that of the view; the zero value: none.
	Plugin migration.Plugin
	// Competition decides about claims with immediate binding on behalf of the node of the settings; nil: they are left to other instances.
	Competition Competition
	// Capacity is notified of what may change the capacity of the driver; nil: nothing is.
	Capacity Capacity
	// Resign lets another instance take over; nil: there is no election.
	Resign func()
	// Events records what happens to claims and volumes.
	Events events.Recorder
	// Journal has the volumes with an operation in progress. Those that are in it when Run begins are finished.
	Journal *journal.Journal
	// Queues measures the queues; nil does not.
	Queues workqueue.MetricsProvider
	// Ages gets the age of the oldest key of each queue; nil does not measure it.
	Ages prometheus.Registerer
	// Metrics measures provisioning and deletion.
	Metrics *Metrics
	// Settings are the options.
	Settings Settings
}

// claimKey is a claim in the queue. The UID keeps a claim apart from a later one of the same name.
type claimKey struct {
	Namespace, Name string
	UID             types.UID
}

// compare orders keys by namespace and name.
func (k claimKey) compare(other claimKey) int {
	return cmp.Or(cmp.Compare(k.Namespace, other.Namespace), cmp.Compare(k.Name, other.Name), cmp.Compare(k.UID, other.UID))
}

// Controller provisions and deletes the volumes of one driver.
type Controller struct {
	cfg    Config
	driver string
	view   *view.View
	// capacity is notified of what may change the capacity of the driver.
	capacity Capacity

	claims  *reconcile.Controller[claimKey]
	unsaved *reconcile.Controller[types.UID]
	// release deletes volumes that were released, and sources keeps what volumes are made from.
	release *release.Controller
	sources *source.Keeper
	// claimRecords has what is remembered of claims.
	claimRecords records.Of[claimRecord]
	// backend makes the calls that create and delete volumes.
	backend *backend.Backend
	// began is when this controller began to work.
	began time.Time
}

// New returns a controller for the driver that cfg.Info describes.
func New(cfg Config) (*Controller, error) {
	info := cfg.Info()
	if info == nil {
		return nil, errors.New("make controller: the driver is not ready")
	}
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics(prometheus.NewRegistry())
	}
	c := &Controller{cfg: cfg, driver: info.Name, view: cfg.View, capacity: noCapacity{}}
	c.backend = backend.New(cfg.Driver, 2*cfg.Settings.Workers, cfg.Settings.Timeout) // workers of claims, and as many of volumes
	if cfg.Capacity != nil {
		c.capacity = cfg.Capacity
	}
	if err := c.makeQueues(); err != nil {
		return nil, err
	}
	c.watch()
	return c, nil
}

// makeQueues makes the queues.
func (c *Controller) makeQueues() (err error) {
	settings := c.cfg.Settings
	c.claims, err = reconcile.New(reconcile.Config[claimKey]{
		Name: "claims", Reconcile: c.reconcileClaim, Inputs: c.claimInputs, HighPriority: c.inProgress, Workers: settings.Workers, Retry: settings.Retry, Drain: settings.Drain, Metrics: c.cfg.Queues, Registerer: c.cfg.Ages,
	})
	if err != nil {
		return fmt.Errorf("make queue of claims: %w", err)
	}
	c.release, err = release.New(release.Config{
		Driver: c.driver, Capabilities: c.caps, Backend: c.backend, Kube: c.cfg.Kube, View: c.view, Secrets: c.cfg.Secrets, Plugin: c.cfg.Plugin,
		VolumeChanged: func(class string, affinity *corev1.VolumeNodeAffinity) { c.capacity.VolumeChanged(class, affinity) },
		Events:        c.cfg.Events, Metrics: c.cfg.Metrics.remove, Queues: c.cfg.Queues, Ages: c.cfg.Ages,
		Workers: settings.Workers, Retry: settings.Retry, KubeTimeout: settings.KubeTimeout, Drain: settings.Drain,
	})
	if err != nil {
		return err
	}
	c.unsaved, err = reconcile.New(reconcile.Config[types.UID]{
		Name: "unsavedpvs", Reconcile: c.reconcileUnsaved, Workers: saveWorkers, Drain: saveDrain,
		Retry: flagset.Retry{Start: saveRetryStart, Max: saveRetryMax}, Metrics: c.cfg.Queues, Registerer: c.cfg.Ages,
	})
	if err != nil {
		return fmt.Errorf("make queue of unsaved volumes: %w", err)
	}
	c.sources, err = source.New(source.Config{
		Driver: c.driver, Node: settings.Node, Kube: c.cfg.Kube, View: c.view, Plugin: c.cfg.Plugin, ModeConversion: settings.ModeConversion,
		InUse: c.sourceInUse, Changed: c.enqueueWaiting, Queues: c.cfg.Queues, Ages: c.cfg.Ages,
		Workers: settings.SourceWorkers, Retry: settings.Retry, KubeTimeout: settings.KubeTimeout, Drain: settings.Drain,
	})
	return err
}

// inProgress reports whether a volume operation is in progress for a claim. Such claims come first: the volume may exist.
func (c *Controller) inProgress(key claimKey) bool {
	_, ok := c.cfg.Journal.Get(key.UID)
	return ok
}

// Run works until ctx ends. Running calls then get time to end, and volumes whose operation is not finished are finished
// or deleted. It may be called once.
func (c *Controller) Run(ctx context.Context) error {
	if err := c.view.WaitSynced(ctx); err != nil {
		// As ctx has ended, the queues begin nothing; what they have registered is free for the next controller.
		return errors.Join(err, c.claims.Run(ctx), c.release.Run(ctx), c.unsaved.Run(ctx), c.sources.Run(ctx))
	}
	c.begin()
	logger := klog.FromContext(ctx)
	logger.Info("Provisioning", logging.KeyDriver, c.driver, logging.KeyWorkers, c.cfg.Settings.Workers)
	if name := c.cfg.Plugin.Name(); name != "" {
		logger.Info("Serving also claims and volumes of the in-tree plugin that the CSI driver replaces", keyPlugin, name)
	}
	return c.work(ctx)
}

// begin makes ready what was found: claims that a former leader may have provisioned already are to be
// read again before their volume is asked for, their sources may be in use, and volume operations in progress are continued.
func (c *Controller) begin() {
	c.began = time.Now()
	for claim := range c.view.Claims.All() {
		if c.relevant(claim) && c.node().AssignedElsewhere(claim) == "" {
			c.claimRecords.Change(claim.UID, func(r *claimRecord) {
				r.unverified = true
				if source, ok := view.SourceOf(claim); ok && view.Pending(claim, c.driver) {
					r.source = source
				}
			})
		}
	}
	for _, intent := range c.cfg.Journal.List() {
		c.enqueueIntent(intent)
	}
}

// Resume goes on with volumes in progress that were found later.
func (c *Controller) Resume(volumes []journal.Intent) {
	for _, intent := range volumes {
		c.enqueueIntent(intent)
	}
}

// enqueueIntent puts a volume operation in progress into the queue of its stage. One that was finished before ends here: its PersistentVolume may be deleted
// by the time that a worker looks, and then the volume would be made again.
func (c *Controller) enqueueIntent(intent journal.Intent) {
	if c.finishedBefore(intent) {
		c.close(intent)
		return
	}
	if intent.Stage == journal.Saving {
		c.unsaved.Add(intent.UID())
		return
	}
	c.claims.Add(keyOf(intent.Spec.Claim))
}

// Requeue retries all claims and volumes that wait, and operations in progress for claims that are gone, which is what the
// return of the driver, possibly with new capabilities, calls for.
func (c *Controller) Requeue() {
	c.claims.WakeAll(func() []claimKey {
		var keys []claimKey
		for _, intent := range c.cfg.Journal.List() {
			if _, exists := c.claim(keyOf(intent.Spec.Claim)); !exists {
				keys = append(keys, keyOf(intent.Spec.Claim))
			}
		}
		for claim := range c.view.Claims.All() {
			if c.relevant(claim) {
				keys = append(keys, keyOf(claim))
			}
		}
		return slices.SortedFunc(slices.Values(keys), claimKey.compare)
	})
	c.release.Requeue()
}

// caps returns the present capabilities of the driver.
func (c *Controller) caps() capabilities.Set {
	return capabilities.Of(c.cfg.Info(), c.cfg.Settings.Features)
}
