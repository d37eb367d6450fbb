package claim

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// This file removes what the version before docs/adr/0007 has put on claims: the record of a volume in progress, as an annotation, and a finalizer. Any user
// who may write a claim may have put them there. Nothing in the annotation is read; that it is there says no more than that a volume of the
// claim may exist.

// isMarked reports whether a claim has the finalizer of the former version.
func isMarked(claim *corev1.PersistentVolumeClaim) bool {
	return slices.Contains(claim.Finalizers, volume.FinalizerInProgress)
}

// planFormer decides about a marked claim. Its volume is requested once more, as the claim and its class ask for it, also if the claim is being deleted: then it is so
// found and deleted. As the outcome of the former request may be unknown, an error does not say that there is no volume.
func planFormer(s claimState) claimPlan {
	if plan := planOurs(s); s.former && s.claim.Spec.VolumeName == "" && plan.verb == claimCreate {
		return claimPlan{verb: claimCreate, why: "a former version may have left a volume of the claim"}
	}
	return claimPlan{verb: claimStrip, why: "the record of a former version is not needed"}
}

// strip removes the marks from a claim.
func (c *Controller) strip(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	_, err := c.editClaim(ctx, claim, func(live *corev1.PersistentVolumeClaim) (bool, error) {
		if !isMarked(live) {
			return false, nil
		}
		live.Finalizers = slices.DeleteFunc(live.Finalizers, func(name string) bool { return name == volume.FinalizerInProgress })
		delete(live.Annotations, volume.AnnInProgress)
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("remove finalizer %s from the claim: %w", volume.FinalizerInProgress, err)
	}
	return nil
}
