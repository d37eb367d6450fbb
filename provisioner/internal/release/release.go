// Package release deletes the volumes of PersistentVolumes that their claims have released, and protects those in use by a finalizer. The decisions are pure
// functions in plan.go; delete.go and finalizer.go do what was decided.
package release

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/longshore-csi/longshore/csikit/events"
	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/migration"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/provisioner/internal/backend"
	"github.com/longshore-csi/longshore/provisioner/internal/capabilities"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapi"
	"github.com/longshore-csi/longshore/provisioner/internal/measure"
	"github.com/longshore-csi/longshore/provisioner/internal/records"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// Reasons of events, which users and tools filter by.
const (
	ReasonDeleteFailed = "VolumeFailedDelete"
	reasonDelete       = "VolumeDelete"
)

// detachGrace is how long a volume may be attached before the wait is worth an event.
const detachGrace = 30 * time.Second

// Config is what a Controller works with. All fields are required but Plugin, Queues and Ages.
type Config struct {
	// Driver is the name of the driver, and Capabilities are what it can do at present.
	Driver       string
	Capabilities func() capabilities.Set
	// Backend deletes volumes.
	Backend *backend.Backend
	// Kube is the API, and View what is known of it.
	Kube kubeapi.Client
	View *view.View
	// Secrets reads the secrets of requests.
	Secrets *kube.SecretCache
	// Plugin is the in-tree plugin that the driver replaces; the zero value: none.
	Plugin migration.Plugin
	// VolumeChanged is called with the class of a volume that is gone, and from where it was accessible.
	VolumeChanged func(class string, affinity *corev1.VolumeNodeAffinity)
	// Events records what happens to PersistentVolumes.
	Events events.Recorder
	// Metrics measures deletions, Queues the queue, and Ages the age of its oldest key; nil does not measure it.
	Metrics measure.Operation
	Queues  workqueue.MetricsProvider
	Ages    prometheus.Registerer
	// Workers is the number of volumes that are deleted concurrently, and Retry how failed work is repeated.
	Workers int
	Retry   flagset.Retry
	// KubeTimeout is the deadline of one request to the API server, and Drain how long running calls may take at the end.
	KubeTimeout, Drain time.Duration
}

// Controller looks after the PersistentVolumes of one driver.
type Controller struct {
	cfg     Config
	queue   *reconcile.Controller[string]
	records records.Of[record]
}

// New returns a controller without work.
func New(cfg Config) (c *Controller, err error) {
	c = &Controller{cfg: cfg}
	c.queue, err = reconcile.New(reconcile.Config[string]{
		Name: "volumes", Reconcile: c.reconcile, Inputs: c.inputsOf, Workers: cfg.Workers, Retry: cfg.Retry, Drain: cfg.Drain, Metrics: cfg.Queues, Registerer: cfg.Ages,
	})
	if err != nil {
		return nil, fmt.Errorf("make queue of volumes: %w", err)
	}
	return c, nil
}

// Run works until ctx ends. It may be called once.
func (c *Controller) Run(ctx context.Context) error { return c.queue.Run(ctx) }

// State returns what /debug/state shows of the queue.
func (c *Controller) State() reconcile.State { return c.queue.State() }

// Requeue looks at all volumes about which something is to be done, also at those that wait.
func (c *Controller) Requeue() {
	c.queue.WakeAll(func() []string {
		var names []string
		for pv := range c.cfg.View.Volumes.All() {
			if !c.settled(pv) {
				names = append(names, pv.Name)
			}
		}
		return slices.Sorted(slices.Values(names))
	})
}

// Changed looks at a PersistentVolume. A watch that was interrupted may bring one and its successor of the same name as one change.
func (c *Controller) Changed(before, after *corev1.PersistentVolume) {
	if before != nil && (after == nil || after.UID != before.UID) {
		c.records.Drop(before.UID)
	}
	if after != nil && !c.settled(after) {
		c.queue.Add(after.Name)
	}
}

// settled reports whether nothing is to be done about a PersistentVolume in this state, as about most.
func (c *Controller) settled(pv *corev1.PersistentVolume) bool {
	plan := planVolume(volumeState{driver: c.cfg.Driver, caps: c.cfg.Capabilities(), pv: pv})
	return plan.verb == volumeLeave && c.records.Get(pv.UID) == record{}
}

// AttachmentChanged looks at the volume that was detached.
func (c *Controller) AttachmentChanged(before, after *storagev1.VolumeAttachment) {
	if before == nil || after != nil {
		return
	}
	for _, name := range view.AttachedVolume(before) {
		if pv, ok := c.cfg.View.Volumes.Get("", name); ok && view.Ours(pv, c.cfg.Driver) {
			c.queue.Wake(name)
		}
	}
}

// record is what this process remembers of a PersistentVolume beside the cache. The zero value says nothing.
type record struct {
	// deleted says that its volume is deleted, and removed that the PersistentVolume is deleted, too.
	deleted, removed bool
	// attached is the time since when the deletion waits for the volume to be detached.
	attached time.Time
}

// tidy drops the record of a PersistentVolume that is gone.
func (c *Controller) tidy(name string, uid types.UID) {
	if pv, ok := c.cfg.View.Volumes.Get("", name); !ok || pv.UID != uid {
		c.records.Drop(uid)
	}
}

// inputsOf returns what decides about the deletion of a volume, but for VolumeAttachments, whose end wakes the volume.
func (c *Controller) inputsOf(name string) any {
	pv, ok := c.cfg.View.Volumes.Get("", name)
	if !ok {
		return nil
	}
	return [...]any{
		pv.UID, pv.Status.Phase, pv.Spec.PersistentVolumeReclaimPolicy, pv.DeletionTimestamp != nil,
		pv.Annotations[volume.AnnDeletionSecretName], pv.Annotations[volume.AnnDeletionSecretNamespace],
	}
}
