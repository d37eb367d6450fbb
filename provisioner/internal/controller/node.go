package controller

import (
	"time"

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
	// Immediate lets the instance compete for claims with immediate binding.
	Immediate bool
	// BaseDelay and MaxDelay bound the pauses of this competition.
	BaseDelay, MaxDelay time.Duration
}

// alone reports whether the instance provisions for its own node alone.
func (n Node) alone() bool {
	return n.Name != ""
}

// mine reports whether the instance may ask for the volume of a claim.
func (n Node) mine(claim *corev1.PersistentVolumeClaim) bool {
	return !n.alone() || selectedNode(claim) == n.Name
}

// assignedElsewhere returns the other node that a claim is for, empty when there is none.
func (n Node) assignedElsewhere(claim *corev1.PersistentVolumeClaim) string {
	if n.mine(claim) {
		return ""
	}
	return selectedNode(claim)
}

// reaches reports whether a volume can be used on the node. A node affinity that cannot be read speaks against it.
func (n Node) reaches(pv *corev1.PersistentVolume) bool {
	if !n.alone() {
		return true
	}
	ok, err := topology.Accessible(pv.Spec.NodeAffinity, n.Segments)
	return ok && err == nil
}

// concerns reports whether a claim is to be provisioned, and may be so by this instance.
func (c *Controller) concerns(claim *corev1.PersistentVolumeClaim) bool {
	return pending(claim, c.driver) && (c.node().assignedElsewhere(claim) == "" || c.claimableByAnyNode(claim))
}

// claimableByAnyNode reports whether claims like this one go to the node that takes them first.
func (c *Controller) claimableByAnyNode(claim *corev1.PersistentVolumeClaim) bool {
	if !c.node().alone() || !c.node().Immediate {
		return false
	}
	class, ok := c.caches.classes.Get("", className(claim))
	return ok && !waitsForConsumer(class)
}

// node returns the node that the instance provisions for.
func (c *Controller) node() Node {
	return c.cfg.Settings.Node
}
