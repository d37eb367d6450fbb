package kubeapi

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// Claims reads claims and PersistentVolumes one at a time, which is all that a node may do, and writes the status of claims.
type Claims struct {
	// API reads and patches with the rights of a node.
	API kube.Client
}

var _ volume.Claims = Claims{}

// Claim returns a claim, nil if there is none with that UID. With cached the API server may answer from its cache, which
// costs it less; a write to what is then out of date is a conflict.
func (c Claims) Claim(ctx context.Context, namespace, name string, uid types.UID, cached bool) (*corev1.PersistentVolumeClaim, error) {
	opts := metav1.GetOptions{}
	if cached {
		opts.ResourceVersion = "0"
	}
	claim, err := c.API.PersistentVolumeClaims(namespace).Get(ctx, name, opts)
	switch {
	case apierrors.IsNotFound(err) || err == nil && claim.UID != uid:
		return nil, nil //nolint:nilnil // a claim that is gone is an answer, not an error
	case err != nil:
		return nil, fmt.Errorf("get claim %s/%s: %w", namespace, name, err)
	default:
		return claim, nil
	}
}

// Volume returns the PersistentVolume of a claim, nil if the claim has none.
func (c Claims) Volume(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, error) {
	pv, err := c.API.PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && (pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID):
		return nil, nil //nolint:nilnil // as for claims
	case err != nil:
		return nil, fmt.Errorf("get volume %q: %w", claim.Spec.VolumeName, err)
	default:
		return pv, nil
	}
}

// Write applies a patch to the status of a claim and returns what the API server has stored. It is a conflict if the claim
// has changed since it was read. No patch, no write.
func (c Claims) Write(ctx context.Context, claim *corev1.PersistentVolumeClaim, patch []byte) (*corev1.PersistentVolumeClaim, error) {
	if patch == nil {
		return claim, nil
	}
	stored, err := c.API.PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return nil, fmt.Errorf("write status of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return stored, nil
}
