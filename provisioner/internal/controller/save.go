package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/provisioner/internal/intents"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// save writes the PersistentVolume of a volume that was created. When the API does not take it at once,
// the queue of unsaved volumes goes on with it for as long as it takes: a volume that exists is not given
// up because the API is away.
func (c *Controller) save(ctx context.Context, intent intents.Intent, created *csi.Volume) (reconcile.Result, error) {
	pv, err := intent.Spec.PersistentVolume(created, volume.Policy{
		Driver:          c.driver,
		Identity:        c.cfg.Settings.Identity,
		PublishReadOnly: c.cfg.Settings.PublishReadOnly,
		Topology:        c.caps().topology,
	})
	if err != nil {
		return c.unwanted(ctx, intent, created.GetVolumeId(), describe(err))
	}
	intent.Stage, intent.VolumeID, intent.PV = intents.Saving, created.GetVolumeId(), pv
	if err := c.cfg.Intents.Update(ctx, intent); err != nil {
		return reconcile.Result{}, fmt.Errorf("record volume %q: %w", intent.VolumeID, err)
	}
	if err := c.write(ctx, intent); err != nil {
		klog.FromContext(ctx).Error(err, "Volume exists, but its PersistentVolume is not saved yet", logging.KeyVolumeID, intent.VolumeID)
		c.unsaved.AddAfter(intent.UID(), saveRetryStart)
	}
	// A volume that was given up is deleted in this same step: its end is an error, and so the pause before the claim
	// starts over grows from one time to the next.
	if givenUp, ok := c.undoing(intent.UID()); ok {
		return c.undo(ctx, givenUp)
	}
	return reconcile.Result{}, nil
}

// reconcileUnsaved tries again to write a PersistentVolume.
func (c *Controller) reconcileUnsaved(ctx context.Context, uid types.UID) (reconcile.Result, error) {
	intent, ok := c.cfg.Intents.Get(uid)
	if !ok || intent.Stage != intents.Saving {
		return reconcile.Result{}, nil
	}
	defer c.tidyClaim(keyOf(intent.Spec.Claim))
	err := c.saveAgain(ctx, intent)
	if _, ok := c.undoing(uid); ok {
		c.claims.Add(keyOf(intent.Spec.Claim))
	}
	return reconcile.Result{}, err
}

// saveAgain writes a PersistentVolume if it is still wanted.
func (c *Controller) saveAgain(ctx context.Context, intent intents.Intent) error {
	if why := c.whyUnwanted(intent); why != "" {
		return c.abandon(ctx, intent, unwantedError(why))
	}
	return c.write(ctx, intent)
}

// undoing returns the intent of a claim whose volume is to be deleted.
func (c *Controller) undoing(claim types.UID) (intents.Intent, bool) {
	intent, ok := c.cfg.Intents.Get(claim)
	return intent, ok && intent.Stage == intents.Undoing
}

// abandon stops saving a volume that its claim does not want any more, unless it is saved already: an attempt whose
// answer was lost may have succeeded.
func (c *Controller) abandon(ctx context.Context, intent intents.Intent, why unwantedError) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	return c.clash(ctx, intent, why)
}

// write creates the PersistentVolume once. An error means that it is to be tried again.
func (c *Controller) write(ctx context.Context, intent intents.Intent) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	saved, err := c.cfg.Kube.PersistentVolumes().Create(ctx, intent.PV, metav1.CreateOptions{})
	switch {
	case err == nil:
		return c.written(ctx, intent, saved)
	case apierrors.IsAlreadyExists(err), apierrors.IsInvalid(err):
		return c.clash(ctx, intent, err)
	}
	err = fmt.Errorf("save PersistentVolume %q: %w", intent.PV.Name, err)
	c.cfg.Events.Warning(intent.Spec.Claim, reasonFailed, "The volume was created, saving its PersistentVolume is retried: "+describe(err))
	return err
}

// written ends the provisioning of a claim.
func (c *Controller) written(ctx context.Context, intent intents.Intent, saved *corev1.PersistentVolume) error {
	c.caches.volumes.Remember(saved)
	if err := c.close(ctx, intent); err != nil {
		return err
	}
	claim := intent.Spec.Claim
	c.cfg.Metrics.provisioned(claim, time.Since(intent.Opened))
	c.capacity.VolumeChanged(saved.Spec.StorageClassName, saved.Spec.NodeAffinity)
	c.cfg.Events.Normal(claim, reasonSucceeded, fmt.Sprintf("Provisioned volume %q", saved.Name))
	klog.FromContext(ctx).V(2).Info("Volume is provisioned", logging.KeyClaim, klog.KObj(claim),
		logging.KeyVolume, saved.Name, logging.KeyVolumeID, intent.VolumeID)
	return nil
}

// unwantedError is why a volume that is not saved yet is not saved any more.
type unwantedError string

// Error implements error.
func (e unwantedError) Error() string {
	return string(e)
}

// clash handles a PersistentVolume that cannot be saved: the API refuses it permanently, its claim no
// longer wants it, or one of its name exists, which may be the same volume.
func (c *Controller) clash(ctx context.Context, intent intents.Intent, refusal error) error {
	var unwanted unwantedError
	existing, err := c.cfg.Kube.PersistentVolumes().Get(ctx, intent.PV.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && errors.As(refusal, &unwanted):
		return c.giveUp(ctx, intent, refusal.Error())
	case apierrors.IsNotFound(err) && apierrors.IsInvalid(refusal):
		return c.giveUp(ctx, intent, "the API refuses its PersistentVolume: "+describe(refusal))
	case err != nil:
		return fmt.Errorf("get PersistentVolume %q, which was refused (%w): %w", intent.PV.Name, refusal, err)
	}
	switch c.compare(existing, intent.PV) {
	case volume.Same:
		return c.written(ctx, intent, existing)
	case volume.Leaving, volume.Taken:
		return c.conceded(ctx, intent, existing)
	case volume.Foreign:
	}
	return c.giveUp(ctx, intent, fmt.Sprintf("PersistentVolume %q exists already, for another volume", existing.Name))
}

// compare returns how an existing PersistentVolume relates to the one that was to be saved. On different nodes, volumes of
// the same handle are not the same.
func (c *Controller) compare(existing, wanted *corev1.PersistentVolume) volume.Match {
	if c.node().reaches(wanted) && !c.node().reaches(existing) {
		return volume.Foreign
	}
	return volume.Compare(existing, wanted)
}

// conceded leaves a volume to the PersistentVolume that has it already: one that is for another claim, or
// one whose own deletion decides what becomes of the volume. The claim, if it is still there, is looked at
// again when that PersistentVolume is gone.
func (c *Controller) conceded(ctx context.Context, intent intents.Intent, existing *corev1.PersistentVolume) error {
	claim := intent.Spec.Claim
	c.unverified.put(claim.UID, time.Now())
	c.caches.volumes.Remember(existing)
	c.cfg.Events.Warning(claim, reasonFailed,
		fmt.Sprintf("PersistentVolume %q has the volume already, and is deleted or for another claim", existing.Name))
	return c.close(ctx, intent)
}

// giveUp records that a volume is to be deleted, for there can be no PersistentVolume. The caller sees to it that it is.
func (c *Controller) giveUp(ctx context.Context, intent intents.Intent, why string) error {
	return c.discard(ctx, intent, intent.VolumeID, why)
}
