package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

// reschedule gives a claim back to the scheduler, by taking away the node that it had selected.
func (c *Controller) reschedule(ctx context.Context, claim *corev1.PersistentVolumeClaim) (reconcile.Result, error) {
	node := view.SelectedNode(claim)
	given, err := c.editClaim(ctx, claim, func(live *corev1.PersistentVolumeClaim) (bool, error) {
		if view.SelectedNode(live) != node {
			return false, nil
		}
		unselect(live)
		return true, nil
	})
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("take node %q from the claim: %w", node, err)
	}
	if given {
		klog.FromContext(ctx).V(2).Info("Claim is given back to the scheduler", logging.KeyNode, node)
	}
	return reconcile.Result{}, nil
}

// unselect takes the node from a claim that the scheduler had selected.
func unselect(claim *corev1.PersistentVolumeClaim) {
	delete(claim.Annotations, view.AnnSelectedNode)
	delete(claim.Annotations, view.AnnAlphaSelectedNode)
}
