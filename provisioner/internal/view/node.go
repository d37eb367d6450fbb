package view

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/topology"
)

// Node is the node of an instance that provisions for its own node alone (--node-deployment). The zero value is for
// an instance that provisions for the whole cluster.
type Node struct {
	// Name is the name of the Node object; empty for the whole cluster.
	Name string
	// Segments is where the driver says that the node is (NodeGetInfo, accessible_topology).
	Segments map[string]string
}

// Alone reports whether the instance provisions for its own node alone.
func (n Node) Alone() bool {
	return n.Name != ""
}

// Mine reports whether the instance may ask for the volume of a claim.
func (n Node) Mine(claim *corev1.PersistentVolumeClaim) bool {
	return !n.Alone() || SelectedNode(claim) == n.Name
}

// AssignedElsewhere returns the other node that a claim is for, empty when there is none.
func (n Node) AssignedElsewhere(claim *corev1.PersistentVolumeClaim) string {
	if n.Mine(claim) {
		return ""
	}
	return SelectedNode(claim)
}

// Reaches reports whether a volume can be used on the node. A node affinity that cannot be read speaks against it.
func (n Node) Reaches(pv *corev1.PersistentVolume) bool {
	if !n.Alone() {
		return true
	}
	ok, err := topology.Accessible(pv.Spec.NodeAffinity, n.Segments)
	return ok && err == nil
}
