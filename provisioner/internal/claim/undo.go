package claim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/metrics"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/provisioner/internal/backend"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/release"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

// unsettledAfter is how long a volume may be in progress before events report that it is not known to be gone.
const unsettledAfter = time.Minute

// unwanted deletes a volume that was created and is of no use.
func (c *Controller) unwanted(ctx context.Context, intent journal.Intent, volumeID, why string) (reconcile.Result, error) {
	intent, err := c.discard(intent, volumeID, why)
	if err != nil {
		return reconcile.Result{}, err
	}
	return c.undo(ctx, intent)
}

// discard records in the intent that a volume is to be deleted, and reports it to the user of the claim while there is one.
func (c *Controller) discard(intent journal.Intent, volumeID, why string) (journal.Intent, error) {
	intent.Stage, intent.VolumeID, intent.Reason, intent.PV = journal.Undoing, volumeID, why, nil
	if err := c.cfg.Journal.Update(intent); err != nil {
		return intent, fmt.Errorf("record that volume %q is unwanted: %w", volumeID, err)
	}
	if c.wanted(intent) {
		c.refuse(intent.Spec.Claim, "Deleting the new volume: "+why)
	}
	return intent, nil
}

// undo deletes an unwanted volume. The claim, if it is still there, starts over after a pause.
func (c *Controller) undo(ctx context.Context, intent journal.Intent) (reconcile.Result, error) {
	logger := klog.FromContext(ctx)
	holder, err := c.holder(ctx, intent)
	switch {
	case err != nil:
		return reconcile.Result{}, err
	case holder != "":
		logger.Info("Not deleting an unwanted volume, a PersistentVolume has it", logging.KeyVolumeID, intent.VolumeID, logging.KeyVolume, holder)
	default:
		kept, err := c.mayDelete(ctx, intent)
		if err == nil && kept != "" {
			return reconcile.Result{}, c.leave(ctx, intent, kept)
		}
		if err == nil {
			err = c.deleteUnwanted(ctx, intent)
		}
		if err != nil {
			return reconcile.Result{}, c.unsettled(intent, err)
		}
	}
	c.close(intent)
	logger.V(2).Info("Unwanted volume is gone", logging.KeyVolumeID, intent.VolumeID, logging.KeyReason, intent.Reason)
	if !c.wanted(intent) {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, fmt.Errorf("provision claim %s: %w", klog.KObj(intent.Spec.Claim), errors.New(intent.Reason))
}

// unsettled returns the error for which an unwanted volume is still not known to be gone. Once that has taken some time it is reported
// by an event: on the claim or, where that does not exist any more, on the CSIDriver object.
func (c *Controller) unsettled(intent journal.Intent, err error) error {
	if time.Since(intent.Opened) < unsettledAfter {
		return err
	}
	var about runtime.Object = c.csiDriver()
	if claim, ok := c.claim(keyOf(intent.Spec.Claim)); ok {
		about = claim
	}
	c.cfg.Events.Warning(about, release.ReasonDeleteFailed, fmt.Sprintf("Volume %q of claim %s is not needed, and may be left in the storage system: %s",
		intent.Spec.Name, klog.KObj(intent.Spec.Claim), backend.Describe(err)))
	return err
}

// holder returns the PersistentVolume that has an unwanted volume, empty for none. The one of the volume's own name is read
// from the server: the cache may not have it yet, when the leader before this one has saved it just before.
func (c *Controller) holder(ctx context.Context, intent journal.Intent) (string, error) {
	if holders := c.view.VolumesOf(intent.VolumeID); len(holders) > 0 {
		return holders[0].Name, nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Settings.KubeTimeout)
	defer cancel()
	pv, err := c.cfg.Kube.PersistentVolumes().Get(ctx, intent.Spec.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("get PersistentVolume %q before its volume is deleted: %w", intent.Spec.Name, err)
	case c.holds(pv, intent):
		return pv.Name, nil
	}
	return "", nil
}

// holds reports whether the PersistentVolume of the name of an unwanted volume has that volume. Its claim decides where it has
// an in-tree form, which does not always have the whole volume ID: that of kubernetes.io/gce-pd lacks the project.
func (c *Controller) holds(pv *corev1.PersistentVolume, intent journal.Intent) bool {
	if pv.Spec.CSI == nil {
		return isFor(pv, intent.UID()) && c.node().Reaches(c.inCSIForm(pv))
	}
	return slices.Contains(view.Handles(c.driver)(pv), intent.VolumeID) && c.node().Reaches(pv)
}

// deleteUnwanted calls DeleteVolume with the secrets that the volume was created with. That the claim is gone is read from the server: the cache does not know of a
// claim that is new to it.
func (c *Controller) deleteUnwanted(ctx context.Context, intent journal.Intent) error {
	if intent.Reason == claimDeleted {
		claim, err := c.liveClaim(ctx, intent.Spec.Claim)
		if err != nil {
			return err
		}
		if c.whyUnwantedBy(claim, intent.Spec.Name) == "" {
			intent.Stage, intent.Reason = journal.Creating, ""
			return errors.Join(fmt.Errorf("delete volume %q: claim %s wants it after all", intent.VolumeID, klog.KObj(claim)), c.cfg.Journal.Update(intent))
		}
	}
	secrets, err := c.intentSecrets(ctx, intent)
	if err != nil {
		return fmt.Errorf("delete unwanted volume %q: %w", intent.VolumeID, err)
	}
	return c.backend.Delete(metrics.WithMigrated(ctx, intent.Spec.InTree != ""), intent.VolumeID, secrets)
}
