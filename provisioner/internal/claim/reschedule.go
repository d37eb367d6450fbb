package claim

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/provisioner/internal/nodemode"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

// mayGive reports whether a claim can be given to the node that has its source. The label of a name that is too long
// for one is the name of no node: the scheduler has to find that itself.
func (c *Controller) mayGive(ctx context.Context, claim *corev1.PersistentVolumeClaim, holder string) bool {
	return holder != "" && view.SelectedNode(claim) != "" && !nodemode.IsGone(ctx, c.cfg.Kube.Nodes(), holder, c.cfg.Settings.KubeTimeout)
}

// give selects another node for a claim. From then on the scheduler considers no other node for the pods of the claim; after reschedule it could
// select the same node forever.
func (c *Controller) give(ctx context.Context, claim *corev1.PersistentVolumeClaim, holder string) (reconcile.Result, error) {
	return c.reselect(ctx, claim, func(live *corev1.PersistentVolumeClaim) {
		unselect(live)
		live.Annotations[view.AnnSelectedNode] = holder
	})
}

// reschedule gives a claim back to the scheduler, by taking away the node that it had selected.
func (c *Controller) reschedule(ctx context.Context, claim *corev1.PersistentVolumeClaim) (reconcile.Result, error) {
	return c.reselect(ctx, claim, unselect)
}

// reselect changes the selected node of a claim, unless it has changed.
func (c *Controller) reselect(ctx context.Context, claim *corev1.PersistentVolumeClaim, change func(live *corev1.PersistentVolumeClaim)) (reconcile.Result, error) {
	node := view.SelectedNode(claim)
	given, err := c.editClaim(ctx, claim, func(live *corev1.PersistentVolumeClaim) (bool, error) {
		if view.SelectedNode(live) != node {
			return false, nil
		}
		change(live)
		return true, nil
	})
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("take node %q from the claim: %w", node, err)
	}
	if given {
		klog.FromContext(ctx).V(2).Info("Claim is not for the selected node", logging.KeyNode, node)
	}
	return reconcile.Result{}, nil
}

// unselect takes the node from a claim that the scheduler had selected.
func unselect(claim *corev1.PersistentVolumeClaim) {
	delete(claim.Annotations, view.AnnSelectedNode)
	delete(claim.Annotations, view.AnnAlphaSelectedNode)
}
