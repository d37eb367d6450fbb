package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/provisioner/internal/intents"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

// This file finishes what nodes that do not exist any more have left behind: the records of their instances on claims, which
// would keep the claims without end. An instance in the same segment of the topology goes on with the volume. Where there is none, no
// driver reaches the volume, and another instance drops the record.

// recorded reports whether a claim has the record of a volume in progress that is this instance's to finish.
func (c *Controller) recorded(claim *corev1.PersistentVolumeClaim) bool {
	if !intents.Recorded(claim) || view.DriverOf(claim) != c.driver {
		return false
	}
	owners, err := intents.Owners(claim)
	if err != nil { // which Recover reports
		return c.node().AssignedElsewhere(claim) == ""
	}
	return !c.node().Alone() || slices.Contains(owners, c.node().Name)
}

// recordedElsewhere returns the other nodes whose instances have left records on a claim, which may be nil.
func (c *Controller) recordedElsewhere(claim *corev1.PersistentVolumeClaim) []string {
	if claim == nil || !c.node().Alone() || view.DriverOf(claim) != c.driver {
		return nil
	}
	owners, _ := intents.Owners(claim) // recorded deals with one that cannot be read
	return slices.DeleteFunc(owners, func(name string) bool { return name == c.node().Name })
}

// planOrphan decides what is to be done about the record of another node: after some time its node is looked at, and once that
// does not exist any more, its record is adopted.
func planOrphan(s claimState) claimPlan {
	plan := planTurn(s, s.orphans[0])
	if plan.verb == claimCompete {
		plan = claimPlan{verb: claimAdopt, why: fmt.Sprintf("node %q has left a record", s.orphans[0]), node: s.orphans[0]}
	}
	return plan
}

// adopt makes the record of a node that does not exist any more the own one, where the driver reaches what that node's driver
// has. Elsewhere it first waits for an instance that can do so, and then drops the record.
func (c *Controller) adopt(ctx context.Context, s claimState, node string) (reconcile.Result, error) {
	segment, err := intents.Segment(s.claim, node)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("read the record of node %q on claim %s: %w", node, klog.KObj(s.claim), err)
	}
	reaches := maps.Equal(segment, s.node.Segments)
	if !reaches && s.turn.tries == 0 {
		return c.await(s, turn{holder: node, gone: true, tries: 1, due: s.now.Add(lastSpread * s.node.MaxDelay)}), nil
	}
	// To drop a record is final: the node may have come back.
	if node != "" && !c.nodeGone(ctx, node) {
		return c.await(s, turn{holder: node, due: c.holders.end(s.node, node, false, time.Now()).next}), nil
	}
	adopted, err := c.editClaim(ctx, s.claim, func(live *corev1.PersistentVolumeClaim) (bool, error) { return c.editOrphan(live, node, reaches) })
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("adopt the record of node %q: %w", node, err)
	}
	if !adopted {
		return reconcile.Result{}, nil
	}
	logger := klog.FromContext(ctx).WithValues(logging.KeyNode, node)
	if reaches {
		logger.Info("Going on with a volume that a node which does not exist any more had in progress")
		return reconcile.Result{}, nil
	}
	logger.Info("Record of a node that does not exist any more is dropped, as its storage cannot be reached")
	if s.pv == nil {
		c.refuse(s.claim, fmt.Sprintf("Node %q does not exist any more: volume %q may be left in its storage", node, c.cfg.Settings.Naming.Name(s.claim.UID)))
	}
	return reconcile.Result{}, nil
}

// editOrphan makes the record of a node on a claim the own one, or drops it, if it is still there. A claim with late binding that is for this node
// gets another one from the scheduler.
func (c *Controller) editOrphan(live *corev1.PersistentVolumeClaim, node string, reaches bool) (bool, error) {
	if !slices.Contains(c.recordedElsewhere(live), node) {
		return false, nil
	}
	if view.Pending(live, c.driver) && view.SelectedNode(live) == node {
		unselect(live)
	}
	if reaches {
		return true, intents.PassRecord(live, node, c.node().Name)
	}
	return true, intents.DropRecord(live, node)
}
