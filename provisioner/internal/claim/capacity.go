package claim

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
)

// Capacity is notified of what this controller does to the capacity of the driver. Its methods return at once.
type Capacity interface {
	// VolumeChanged says that a volume of a class has come or gone, and from where it is accessible.
	VolumeChanged(class string, affinity *corev1.VolumeNodeAffinity)
	// Exhausted says that there was no capacity for a volume of a class, and in which topology it was requested.
	Exhausted(class string, where *csi.TopologyRequirement)
}

// noCapacity ignores all notifications.
type noCapacity struct{}

var _ Capacity = noCapacity{}

// VolumeChanged implements Capacity.
func (noCapacity) VolumeChanged(string, *corev1.VolumeNodeAffinity) {}

// Exhausted implements Capacity.
func (noCapacity) Exhausted(string, *csi.TopologyRequirement) {}
