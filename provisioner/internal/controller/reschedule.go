package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

// reschedule gives a claim back to the scheduler, by taking away the node that it had selected. The claim
// is read first and written as a whole: the permissions that provisioners have always had allow updates
// of claims, and no patches.
func (c *Controller) reschedule(ctx context.Context, claim *corev1.PersistentVolumeClaim) (reconcile.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	client := c.cfg.Kube.PersistentVolumeClaims(claim.Namespace)
	live, err := client.Get(ctx, claim.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("get claim %s to reschedule it: %w", klog.KObj(claim), err)
	case live.UID != claim.UID || view.SelectedNode(live) != view.SelectedNode(claim):
		return reconcile.Result{}, nil
	}
	delete(live.Annotations, view.AnnSelectedNode)
	delete(live.Annotations, view.AnnAlphaSelectedNode)
	updated, err := client.Update(ctx, live, metav1.UpdateOptions{})
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("take node %q from claim %s: %w", view.SelectedNode(claim), klog.KObj(claim), err)
	}
	c.view.Claims.Remember(updated)
	klog.FromContext(ctx).V(2).Info("Claim is given back to the scheduler", logging.KeyNode, view.SelectedNode(claim))
	return reconcile.Result{}, nil
}
