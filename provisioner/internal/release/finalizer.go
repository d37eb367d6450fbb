package release

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// protect puts the finalizer on a PersistentVolume, so that its volume is deleted even when the
// PersistentVolume is deleted before the claim (KEP-2644).
func (c *Controller) protect(ctx context.Context, pv *corev1.PersistentVolume) error {
	return c.patchFinalizers(ctx, pv, "finalizers")
}

// release takes the finalizer off.
func (c *Controller) release(ctx context.Context, pv *corev1.PersistentVolume) error {
	return c.patchFinalizers(ctx, pv, "$deleteFromPrimitiveList/finalizers")
}

// patchFinalizers adds or removes one finalizer by a strategic merge patch, which says nothing about the
// finalizers of others and so needs no resource version; the UID keeps it from a successor of the object.
func (c *Controller) patchFinalizers(ctx context.Context, pv *corev1.PersistentVolume, directive string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":     pv.UID,
		directive: []string{volume.Finalizer},
	}})
	if err != nil {
		return fmt.Errorf("make patch for the finalizers of PersistentVolume %q: %w", pv.Name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.KubeTimeout)
	defer cancel()
	patched, err := c.cfg.Kube.PersistentVolumes().Patch(ctx, pv.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("patch finalizers of PersistentVolume %q: %w", pv.Name, err)
	}
	c.cfg.View.Volumes.Remember(patched)
	return nil
}
