package controller

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/provisioner/internal/intents"
)

// unwanted deletes a volume that was created and is of no use.
func (c *Controller) unwanted(ctx context.Context, intent intents.Intent, volumeID, why string) (reconcile.Result, error) {
	if err := c.discard(ctx, intent, volumeID, why); err != nil {
		return reconcile.Result{}, err
	}
	intent, _ = c.cfg.Intents.Get(intent.UID())
	return c.undo(ctx, intent)
}

// discard records that a volume is to be deleted, and tells the user if there still is one.
func (c *Controller) discard(ctx context.Context, intent intents.Intent, volumeID, why string) error {
	intent.Stage, intent.VolumeID, intent.Reason, intent.PV = intents.Undoing, volumeID, why, nil
	if err := c.cfg.Intents.Update(ctx, intent); err != nil {
		return fmt.Errorf("record that volume %q is unwanted: %w", volumeID, err)
	}
	if c.wanted(intent) {
		c.refuse(intent.Spec.Claim, "The volume is deleted again: "+why)
	}
	return nil
}

// undo deletes an unwanted volume. The claim, if it is still there, starts over after a pause.
func (c *Controller) undo(ctx context.Context, intent intents.Intent) (reconcile.Result, error) {
	logger := klog.FromContext(ctx)
	if holders := c.caches.volumes.ByIndex(volumesByHandle, intent.VolumeID); len(holders) > 0 {
		logger.Info("Not deleting an unwanted volume, a PersistentVolume has it", logging.KeyVolumeID, intent.VolumeID,
			logging.KeyVolume, holders[0].Name)
	} else if err := c.deleteUnwanted(ctx, intent); err != nil {
		return reconcile.Result{}, err
	}
	if err := c.close(ctx, intent); err != nil {
		return reconcile.Result{}, err
	}
	logger.V(2).Info("Unwanted volume is gone", logging.KeyVolumeID, intent.VolumeID, logging.KeyReason, intent.Reason)
	if !c.wanted(intent) {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, fmt.Errorf("provision claim %s: %w", klog.KObj(intent.Spec.Claim), errors.New(intent.Reason))
}

// deleteUnwanted calls DeleteVolume with the secrets that the volume was created with.
func (c *Controller) deleteUnwanted(ctx context.Context, intent intents.Intent) error {
	secrets, err := c.secretsIfAny(ctx, intent.Spec.Secrets.Provision)
	if err != nil {
		return fmt.Errorf("delete unwanted volume %q: %w", intent.VolumeID, err)
	}
	return c.callDelete(ctx, intent.VolumeID, secrets)
}
