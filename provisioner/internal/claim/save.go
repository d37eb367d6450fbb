package claim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/provisioner/internal/backend"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// save writes the PersistentVolume of a volume that was created. When the API does not take it at once,
// the queue of unsaved volumes goes on with it for as long as it takes: a volume that exists is not given
// up because the API is away.
func (c *Controller) save(ctx context.Context, intent journal.Intent, created *csi.Volume) (reconcile.Result, error) {
	pv, err := c.newVolume(intent, created)
	if err != nil {
		return c.unwanted(ctx, intent, created.GetVolumeId(), backend.Describe(err))
	}
	intent.Stage, intent.VolumeID, intent.PV = journal.Saving, created.GetVolumeId(), pv
	if err := c.cfg.Journal.Update(intent); err != nil {
		return reconcile.Result{}, fmt.Errorf("record volume %q: %w", intent.VolumeID, err)
	}
	why, err := c.write(ctx, intent)
	switch {
	case err != nil:
		klog.FromContext(ctx).Error(err, "Volume exists, but its PersistentVolume is not saved yet", logging.KeyVolumeID, intent.VolumeID)
		c.unsaved.AddAfter(intent.UID(), saveRetryStart)
	case why != "":
		// The volume is deleted in this same step: its end is an error, and so the pause before the claim starts over grows
		// from one time to the next.
		return c.unwanted(ctx, intent, intent.VolumeID, why)
	}
	return reconcile.Result{}, nil
}

// newVolume returns the PersistentVolume of a volume, for a claim of an in-tree class in the form of that plugin.
func (c *Controller) newVolume(intent journal.Intent, created *csi.Volume) (*corev1.PersistentVolume, error) {
	pv, err := intent.Spec.PersistentVolume(created, volume.Policy{
		Driver:          c.driver,
		Identity:        c.cfg.Settings.Identity,
		PublishReadOnly: c.cfg.Settings.PublishReadOnly,
		Topology:        c.caps().Topology,
	})
	if err != nil || intent.Spec.InTree == "" {
		return pv, err
	}
	return c.cfg.Plugin.ToInTree(pv)
}

// inCSIForm returns a PersistentVolume in CSI form if it has one, as the cache has it.
func (c *Controller) inCSIForm(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
	translated, _ := c.cfg.Plugin.ToCSI(pv) // returns pv with an error
	return translated
}

// reconcileUnsaved tries again to write a PersistentVolume.
func (c *Controller) reconcileUnsaved(ctx context.Context, uid types.UID) (reconcile.Result, error) {
	intent, ok := c.cfg.Journal.Get(uid)
	if !ok || intent.Stage != journal.Saving {
		return reconcile.Result{}, nil
	}
	defer c.tidyKey(keyOf(intent.Spec.Claim))
	undo, err := c.saveAgain(ctx, intent)
	if undo {
		c.claims.Wake(keyOf(intent.Spec.Claim))
	}
	return reconcile.Result{}, err
}

// saveAgain writes a PersistentVolume if it is still wanted, and reports whether its volume is to be deleted, which the
// intent says then.
func (c *Controller) saveAgain(ctx context.Context, intent journal.Intent) (undo bool, err error) {
	why := c.whyUnwanted(intent)
	if why != "" {
		why, err = c.clash(ctx, intent, why, true)
	} else {
		why, err = c.write(ctx, intent)
	}
	if err != nil || why == "" {
		return false, err
	}
	_, err = c.discard(intent, intent.VolumeID, why)
	return err == nil, err
}

// write creates the PersistentVolume once. With an error it is to be tried again; why says for what reason there can be none, and the volume is to be deleted. Without
// both the volume has a PersistentVolume, and the intent is closed.
func (c *Controller) write(ctx context.Context, intent journal.Intent) (why string, err error) {
	callCtx, cancel := context.WithTimeout(ctx, c.cfg.Settings.KubeTimeout)
	defer cancel()
	saved, err := c.cfg.Kube.PersistentVolumes().Create(callCtx, intent.PV, metav1.CreateOptions{})
	switch {
	case err == nil:
		c.written(ctx, intent, saved)
		return "", nil
	case apierrors.IsAlreadyExists(err):
		return c.clash(ctx, intent, backend.Describe(err), false)
	case isInvalid(err):
		return c.clash(ctx, intent, "the API refuses its PersistentVolume: "+backend.Describe(err), true)
	}
	err = fmt.Errorf("save PersistentVolume %q: %w", intent.PV.Name, err)
	c.cfg.Events.Warning(intent.Spec.Claim, reasonFailed, "The volume was created, saving its PersistentVolume is retried: "+backend.Describe(err))
	return "", err
}

// isInvalid reports whether the API server will never accept the object as it is: each cause names a field. A policy that denies it, which an administrator can
// change, answers 422, too, and names none.
func isInvalid(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details != nil && len(details.Causes) > 0 && !slices.ContainsFunc(details.Causes, func(cause metav1.StatusCause) bool { return cause.Field == "" })
}

// written ends the provisioning of a claim.
func (c *Controller) written(ctx context.Context, intent journal.Intent, saved *corev1.PersistentVolume) {
	c.view.Volumes.Remember(saved)
	c.close(intent)
	claim := intent.Spec.Claim
	c.cfg.Metrics.provisioned(claim, time.Since(intent.Opened))
	c.capacity.VolumeChanged(saved.Spec.StorageClassName, c.inCSIForm(saved).Spec.NodeAffinity)
	c.cfg.Events.Normal(claim, reasonSucceeded, fmt.Sprintf("Provisioned volume %q", saved.Name))
	klog.FromContext(ctx).V(2).Info("Volume is provisioned", logging.KeyClaim, klog.KObj(claim),
		logging.KeyVolume, saved.Name, logging.KeyVolumeID, intent.VolumeID)
}

// clash handles a PersistentVolume that cannot be saved: its claim no longer wants it, the API refuses it, or one of its name
// exists, which may be the same volume: an attempt whose answer was lost may have succeeded. The refusal is final if the
// volume is to be deleted when there is none. The results are those of write.
func (c *Controller) clash(ctx context.Context, intent journal.Intent, refusal string, final bool) (why string, err error) {
	callCtx, cancel := context.WithTimeout(ctx, c.cfg.Settings.KubeTimeout)
	defer cancel()
	existing, err := c.cfg.Kube.PersistentVolumes().Get(callCtx, intent.PV.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && final:
		return refusal, nil
	case err != nil:
		return "", fmt.Errorf("get PersistentVolume %q, which was not saved (%s): %w", intent.PV.Name, refusal, err)
	}
	switch c.compare(existing, intent.PV) {
	case volume.Same:
		c.written(ctx, intent, existing)
		return "", nil
	case volume.Leaving, volume.Taken:
		c.conceded(intent, existing)
		return "", nil
	case volume.Foreign:
	}
	return fmt.Sprintf("PersistentVolume %q exists already, for another volume", existing.Name), nil
}

// compare returns how an existing PersistentVolume relates to the one that was to be saved. On different nodes, volumes of
// the same handle are not the same.
func (c *Controller) compare(existing, wanted *corev1.PersistentVolume) volume.Match {
	existing, wanted = c.inCSIForm(existing), c.inCSIForm(wanted)
	if c.node().Reaches(wanted) && !c.node().Reaches(existing) {
		return volume.Foreign
	}
	return volume.Compare(existing, wanted)
}

// conceded leaves a volume to the PersistentVolume that has it already: one that is for another claim, or
// one whose own deletion decides what becomes of the volume. The claim, if it is still there, is looked at
// again when that PersistentVolume is gone.
func (c *Controller) conceded(intent journal.Intent, existing *corev1.PersistentVolume) {
	claim := intent.Spec.Claim
	c.unverify(claim.UID)
	c.view.Volumes.Remember(existing)
	c.cfg.Events.Warning(claim, reasonFailed,
		fmt.Sprintf("PersistentVolume %q has the volume already, and is deleted or for another claim", existing.Name))
	c.close(intent)
}
