package claim

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

// editClaim changes a claim as the server has it, unless it is gone, or edit finds nothing to change, and reports whether it did. The claim is read
// first and written as a whole: the permissions that provisioners have always had allow updates of claims, and no patches. Of several writers at a
// time the API lets one through; the others have a conflict.
func (c *Controller) editClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim, edit func(live *corev1.PersistentVolumeClaim) (bool, error)) (bool, error) {
	live, err := c.liveClaim(ctx, claim)
	if err != nil || live == nil {
		return false, err
	}
	if changed, err := edit(live); err != nil || !changed {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Settings.KubeTimeout)
	defer cancel()
	updated, err := c.cfg.Kube.PersistentVolumeClaims(claim.Namespace).Update(ctx, live, metav1.UpdateOptions{})
	if err != nil {
		return false, fmt.Errorf("update claim %s: %w", klog.KObj(claim), err)
	}
	c.view.Claims.Remember(updated)
	return true, nil
}
