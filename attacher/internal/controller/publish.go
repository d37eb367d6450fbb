package controller

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
)

// errPublishLost is a driver that announced PUBLISH_UNPUBLISH_VOLUME and does not now.
var errPublishLost = errors.New("does not announce PUBLISH_UNPUBLISH_VOLUME, but did before: " +
	"no volume is attached or detached until the driver announces it again")

// Shared is what the Controllers of a process have in common, of which there is one after the other if the Lease is lost: their
// metrics, and whether the driver has attached volumes.
type Shared struct {
	driver   string
	announce func() Features
	// attaches: the driver has announced that it attaches, or an object proves it. Never reset.
	attaches    atomic.Bool
	corrections *prometheus.CounterVec
}

// NewShared returns what the Controllers with this configuration share. It must be called once for a Registerer.
func NewShared(cfg Config) *Shared {
	s := &Shared{driver: cfg.Driver, announce: cfg.Features, corrections: newCorrections(cfg.Registerer, cfg.Driver)}
	s.registerLost(cfg.Registerer)
	s.features() // remembers that the driver attaches
	return s
}

// attachedByCall reports whether ControllerPublishVolume may have been called for va: the finalizer and the
// annotations are written before the call, by this attacher and by the external-attacher alike.
func attachedByCall(va *storagev1.VolumeAttachment, finalizer string) bool {
	return hasFinalizer(va, finalizer) || va.Annotations[AnnotationNodeID] != "" || va.Annotations[AnnotationVolumeHandle] != ""
}

// noteVA remembers that the driver attaches if va proves it.
func (c *Controller) noteVA(va *storagev1.VolumeAttachment) {
	if c.ours(va) && attachedByCall(va, c.finalizer) {
		c.attaches.Store(true)
	}
}

// notePV remembers that the driver attaches if pv proves it: the finalizer is added before the first call for the volume.
func (c *Controller) notePV(pv *corev1.PersistentVolume) {
	if hasFinalizer(pv, c.finalizer) {
		c.attaches.Store(true)
	}
}

// features returns what the driver announces now, and remembers that the driver attaches if it announces that.
func (s *Shared) features() Features {
	features := s.announce()
	if features.Publish {
		s.attaches.Store(true)
	}
	return features
}

// AttachLost returns an error while the driver does not announce PUBLISH_UNPUBLISH_VOLUME although it did before, as this process
// has seen or an object in the API proves. A driver may announce too little while it is starting. To
// believe it would mean to mark volumes attached that are not, and to forget those that must be detached.
func (s *Shared) AttachLost() error {
	if s.features().Publish || !s.attaches.Load() {
		return nil
	}
	return fmt.Errorf("driver %q %w", s.driver, errPublishLost)
}

// logPublish logs what it means that the driver does not announce PUBLISH_UNPUBLISH_VOLUME, and what to do.
func (c *Controller) logPublish(ctx context.Context) {
	logger := klog.FromContext(ctx).WithValues(logging.KeyDriver, c.cfg.Driver)
	err := c.AttachLost()
	switch {
	case c.features().Publish:
		return
	case err == nil:
		logger.Info("Driver does not attach: VolumeAttachments are marked attached without a call. " +
			"Set attachRequired: false in its CSIDriver object, then no attacher is needed")
		return
	}
	attached := 0
	for va := range c.vas.All() {
		if c.ours(va) && attachedByCall(va, c.finalizer) {
			attached++
		}
	}
	logger.Error(err, "Volumes are neither attached nor detached. Repair the driver; its capabilities are read again "+
		"every few seconds. If it shall not attach any more, see \"A driver that stops attaching\" in the README of csi-attacher",
		logging.KeyCount, attached)
}

// markAttached sets attached without a call. Kubernetes waits for it although the driver has no
// ControllerPublishVolume (seed 001, "Attaching and Detaching").
func (c *Controller) markAttached(ctx context.Context, va *storagev1.VolumeAttachment) error {
	return c.saveAttached(ctx, va, va.Status.AttachmentMetadata)
}

// registerLost shows AttachLost as a metric. nil: no registry.
func (s *Shared) registerLost(reg prometheus.Registerer) {
	if reg == nil {
		return
	}
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "csi_attacher_publish_capability_lost",
		Help:        "1 while the driver does not announce PUBLISH_UNPUBLISH_VOLUME but did before, else 0.",
		ConstLabels: prometheus.Labels{"driver_name": s.driver},
	}, func() float64 {
		if s.AttachLost() != nil {
			return 1
		}
		return 0
	}))
}
