package capacity

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/topology"
)

// VolumeChanged says that a volume of a class was created or deleted: the capacity of its segments has changed, for all
// classes, as these may share it. Without topology there is one segment for all nodes. If the driver has topology but the
// volume names no segment, the capacity of its class is refreshed in all segments.
func (c *Controller) VolumeChanged(class string, affinity *corev1.VolumeNodeAffinity) {
	segments, err := topology.AffinitySegments(affinity)
	if err != nil || len(segments) == 0 {
		everywhere := topology.Segment{}
		c.refresh(func(i item) bool { return i.class == class || i.segment == everywhere })
		return
	}
	for _, segment := range segments {
		c.refreshSegment(segment, "")
	}
}

// Exhausted says that there was no capacity for a volume of a class with that topology requirement.
func (c *Controller) Exhausted(class string, where *csi.TopologyRequirement) {
	if preferred := where.GetPreferred(); len(preferred) > 0 {
		if segment, err := topology.FromTopology(preferred[0]); err == nil {
			c.refreshSegment(segment, class)
			return
		}
	}
	c.refresh(func(i item) bool { return i.class == class })
}

// refreshSegment enqueues the items of a segment, of one class or of all. If no node is in exactly that segment, it enqueues
// the items of the segments within it.
func (c *Controller) refreshSegment(segment topology.Segment, class string) {
	c.mu.Lock()
	classes, exact := c.classesAt[segment]
	c.mu.Unlock()
	if !exact {
		c.refresh(func(i item) bool { return (class == "" || i.class == class) && segment.Matches(i.segment.Map()) })
		return
	}
	for _, name := range classes {
		if class == "" || name == class {
			c.items.AddAfter(item{segment: segment, class: name}, batchDelay)
		}
	}
}

// refresh enqueues the matching items after the batch delay, once for all changes within it.
func (c *Controller) refresh(matches func(item) bool) {
	for _, wanted := range c.all() {
		if matches(wanted) {
			c.items.AddAfter(wanted, batchDelay)
		}
	}
}
