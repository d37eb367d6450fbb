package controller

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/longshore-csi/longshore/topology"
)

// Capacity is notified of what may change the capacity of the driver. Its methods return at once.
type Capacity interface {
	// TopologyChanged says that the segments may have changed.
	TopologyChanged()
	// ClassChanged says that a StorageClass has come, has changed, or is gone.
	ClassChanged(name string)
	// VolumeChanged says that a volume of a class has come or gone, and from where it is accessible.
	VolumeChanged(class string, affinity *corev1.VolumeNodeAffinity)
	// Exhausted says that there was no capacity for a volume of a class, and in which topology it was requested.
	Exhausted(class string, where *csi.TopologyRequirement)
}

// noCapacity ignores all notifications.
type noCapacity struct{}

var _ Capacity = noCapacity{}

// TopologyChanged implements Capacity.
func (noCapacity) TopologyChanged() {}

// ClassChanged implements Capacity.
func (noCapacity) ClassChanged(string) {}

// VolumeChanged implements Capacity.
func (noCapacity) VolumeChanged(string, *corev1.VolumeNodeAffinity) {}

// Exhausted implements Capacity.
func (noCapacity) Exhausted(string, *csi.TopologyRequirement) {}

// SetCapacityObserver sets what is notified of changes of the capacity. It must be called before Run.
func (c *Controller) SetCapacityObserver(capacity Capacity) {
	c.capacity = capacity
}

// WaitSynced waits until the caches are complete.
func (c *Controller) WaitSynced(ctx context.Context) error {
	return c.caches.waitSynced(ctx)
}

// Classes returns all StorageClasses.
func (c *Controller) Classes() []*storagev1.StorageClass {
	return c.caches.classes.List()
}

// Class returns one.
func (c *Controller) Class(name string) (*storagev1.StorageClass, bool) {
	return c.caches.classes.Get("", name)
}

// Segments returns the segments that the nodes of the driver are in: without topology the one that has them all.
func (c *Controller) Segments() []topology.Segment {
	if c.caches.index == nil {
		return []topology.Segment{{}}
	}
	return c.caches.index.Segments()
}

// ReportsCapacity reports whether the driver has GET_CAPACITY.
func (c *Controller) ReportsCapacity() bool {
	return c.caps().capacity
}

// affinities shares equal node affinities of volumes: there are many volumes and few segments.
type affinities struct {
	mu sync.Mutex
	by map[string]*corev1.VolumeNodeAffinity
}

// share returns one and the same affinity for all that list the same segments; nil for none and for other forms.
func (p *affinities) share(affinity *corev1.VolumeNodeAffinity) *corev1.VolumeNodeAffinity {
	segments, err := topology.AffinitySegments(affinity)
	if err != nil || len(segments) == 0 {
		return nil
	}
	names := make([]string, 0, len(segments))
	for _, segment := range segments {
		names = append(names, segment.String())
	}
	slices.Sort(names)
	key := strings.Join(names, "\n")
	p.mu.Lock()
	defer p.mu.Unlock()
	if known, ok := p.by[key]; ok {
		return known
	}
	if p.by == nil {
		p.by = map[string]*corev1.VolumeNodeAffinity{}
	}
	p.by[key] = affinity
	return affinity
}

// withAffinity keeps the node affinity of volumes whose handle slim keeps.
func withAffinity(slim func(*corev1.PersistentVolume) *corev1.PersistentVolume) func(*corev1.PersistentVolume) *corev1.PersistentVolume {
	shared := &affinities{}
	return func(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
		affinity := pv.Spec.NodeAffinity
		kept := slim(pv)
		if kept.Spec.CSI != nil {
			kept.Spec.NodeAffinity = shared.share(affinity)
		}
		return kept
	}
}
