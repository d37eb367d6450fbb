package nodeinfo

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// wish is what a CSINode shall contain. Drivers that it does not name are left
// as they are: they may register any moment.
type wish struct {
	present map[string]storagev1.CSINodeDriver
	absent  map[string]bool
}

// newCSINode returns the CSINode of node, with the drivers of w. It goes when
// the node goes.
func newCSINode(node *corev1.Node, w wish) *storagev1.CSINode {
	obj := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node.Name, OwnerReferences: []metav1.OwnerReference{owner(node)}}}
	obj.Spec.Drivers = with([]storagev1.CSINodeDriver{}, w)
	return obj
}

func owner(node *corev1.Node) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
}

// ownedByOther reports whether the CSINode belongs to a Node of the same name
// that has been deleted since. Such an object is about to be collected.
func ownedByOther(obj *storagev1.CSINode, uid types.UID) bool {
	for _, ref := range obj.OwnerReferences {
		if ref.Kind == "Node" {
			return ref.UID != uid
		}
	}
	return false
}

// updates returns the states that the CSINode must be written through to
// become as w says: none if it is so already, and two if an entry changes in a
// field that the API holds immutable, which is all but allocatable: the entry
// has to go before it can come back.
func updates(obj *storagev1.CSINode, node *corev1.Node, w wish) []*storagev1.CSINode {
	final := obj.DeepCopy()
	if len(final.OwnerReferences) == 0 {
		final.OwnerReferences = []metav1.OwnerReference{owner(node)}
	}
	dropMigrated(final)
	final.Spec.Drivers = with(final.Spec.Drivers, w)
	if same(obj, final) {
		return nil
	}
	between := obj.DeepCopy()
	between.Spec.Drivers = slices.DeleteFunc(between.Spec.Drivers, func(e storagev1.CSINodeDriver) bool {
		want, ok := w.present[e.Name]
		return ok && !sameIdentity(e, want)
	})
	if len(between.Spec.Drivers) == len(obj.Spec.Drivers) {
		return []*storagev1.CSINode{final}
	}
	return []*storagev1.CSINode{between, final}
}

// with returns drivers as w wants them: those that are there keep their place.
func with(drivers []storagev1.CSINodeDriver, w wish) []storagev1.CSINodeDriver {
	result := make([]storagev1.CSINodeDriver, 0, len(drivers)+len(w.present))
	seen := map[string]bool{}
	for _, e := range drivers {
		if w.absent[e.Name] {
			continue
		}
		seen[e.Name] = true
		if want, ok := w.present[e.Name]; ok && !sameEntry(e, want) {
			e = want
		}
		result = append(result, e)
	}
	for _, name := range sortedKeys(w.present) {
		if !seen[name] {
			result = append(result, w.present[name])
		}
	}
	return result
}

func same(a, b *storagev1.CSINode) bool {
	return slices.EqualFunc(a.Spec.Drivers, b.Spec.Drivers, sameEntry) &&
		a.Annotations[corev1.MigratedPluginsAnnotationKey] == b.Annotations[corev1.MigratedPluginsAnnotationKey] &&
		len(a.OwnerReferences) == len(b.OwnerReferences)
}

// sameIdentity compares what the API holds immutable.
func sameIdentity(a, b storagev1.CSINodeDriver) bool {
	return a.Name == b.Name && a.NodeID == b.NodeID && slices.Equal(a.TopologyKeys, b.TopologyKeys)
}

func sameEntry(a, b storagev1.CSINodeDriver) bool {
	return sameIdentity(a, b) && count(a) == count(b)
}

// count returns the allocatable volumes, -1 if they are not limited.
func count(e storagev1.CSINodeDriver) int32 {
	if e.Allocatable == nil || e.Allocatable.Count == nil {
		return -1
	}
	return *e.Allocatable.Count
}

// dropMigrated removes the annotation of a kubelet that names the in-tree plugins
// whose volumes it mounts through CSI drivers, which this agent does not do.
func dropMigrated(obj *storagev1.CSINode) {
	delete(obj.Annotations, corev1.MigratedPluginsAnnotationKey)
}
