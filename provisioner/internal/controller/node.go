package controller

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

// Node is the node of an instance that provisions for its own node alone (--node-deployment). The zero value is for
// an instance that provisions for the whole cluster.
type Node struct {
	view.Node
	// Immediate lets the instance compete for claims with immediate binding.
	Immediate bool
	// BaseDelay and MaxDelay bound the pauses of this competition.
	BaseDelay, MaxDelay time.Duration
}

// concerns reports whether a claim is to be provisioned, and may be so by this instance.
func (c *Controller) concerns(claim *corev1.PersistentVolumeClaim) bool {
	return view.Pending(claim, c.driver) && (c.node().AssignedElsewhere(claim) == "" || c.claimableByAnyNode(claim))
}

// claimableByAnyNode reports whether claims like this one go to the node that takes them first.
func (c *Controller) claimableByAnyNode(claim *corev1.PersistentVolumeClaim) bool {
	if !c.node().Alone() || !c.node().Immediate {
		return false
	}
	class, ok := c.view.Class(view.ClassName(claim))
	return ok && !view.WaitsForConsumer(class)
}

// node returns the node that the instance provisions for.
func (c *Controller) node() Node {
	return c.cfg.Settings.Node
}
