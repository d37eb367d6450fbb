package capacity

import (
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/topology"
)

// TopologyChanged says that the segments may have changed.
func (c *Controller) TopologyChanged() {
	notify(c.moved)
}

// ClassChanged says that a StorageClass has come, has changed, or is gone.
func (c *Controller) ClassChanged(name string) {
	c.mu.Lock()
	c.classes[name] = struct{}{}
	c.mu.Unlock()
	notify(c.changed)
}

// ofChanged returns the items of the classes that have changed, and forgets these.
func (c *Controller) ofChanged() []item {
	c.mu.Lock()
	classes := c.classes
	c.classes = map[string]struct{}{}
	c.mu.Unlock()
	return slices.DeleteFunc(c.all(), func(i item) bool {
		_, changed := classes[i.class]
		return !changed
	})
}

// VolumeChanged says that a volume of a class has come or gone: the capacity of its segments has changed, for all classes, as
// these may share it. Of a driver without topology that is everywhere; otherwise without a segment only the class is known.
func (c *Controller) VolumeChanged(class string, affinity *corev1.VolumeNodeAffinity) {
	segments, err := topology.AffinitySegments(affinity)
	if err != nil || len(segments) == 0 {
		everywhere := topology.Segment{}
		c.later(func(i item) bool { return i.class == class || i.segment == everywhere })
		return
	}
	for _, segment := range segments {
		c.place(segment, "")
	}
}

// Exhausted says that there was no capacity for a volume of a class, and in which topology it was requested.
func (c *Controller) Exhausted(class string, where *csi.TopologyRequirement) {
	if preferred := where.GetPreferred(); len(preferred) > 0 {
		if segment, err := topology.FromTopology(preferred[0]); err == nil {
			c.place(segment, class)
			return
		}
	}
	c.later(func(i item) bool { return i.class == class })
}

// place asks again for the capacity in a segment, of one class or of all, and where no node is in just that segment in
// those that are within it.
func (c *Controller) place(segment topology.Segment, class string) {
	c.mu.Lock()
	classes, exact := c.places[segment]
	c.mu.Unlock()
	if !exact {
		c.later(func(i item) bool { return (class == "" || i.class == class) && segment.Matches(i.segment.Map()) })
		return
	}
	for _, name := range classes {
		if class == "" || name == class {
			c.items.AddAfter(item{segment: segment, class: name}, settle)
		}
	}
}

// later asks again for some capacities, once for all changes that come together.
func (c *Controller) later(which func(item) bool) {
	for _, wanted := range c.all() {
		if which(wanted) {
			c.items.AddAfter(wanted, settle)
		}
	}
}
