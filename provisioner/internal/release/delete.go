package release

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/metrics"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/provisioner/internal/backend"
	"github.com/longshore-csi/longshore/provisioner/internal/params"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// reconcile looks at one PersistentVolume and does what is to be done.
func (c *Controller) reconcile(ctx context.Context, name string) (reconcile.Result, error) {
	logger := klog.FromContext(ctx).WithValues(logging.KeyVolume, name)
	ctx = klog.NewContext(ctx, logger)
	state := c.volumeState(name)
	if state.pv != nil {
		defer c.tidy(name, state.pv.UID)
	}
	plan := planVolume(state)
	logger.V(4).Info("Decided about volume", logging.KeyReason, plan.why)
	switch plan.verb {
	case volumeProtect:
		return reconcile.Result{}, c.protect(ctx, state.pv)
	case volumeRelease:
		return reconcile.Result{}, c.release(ctx, state.pv)
	case volumeWait:
		return c.waitDetached(state.pv), nil
	case volumeRefuse:
		c.cfg.Events.Warning(state.pv, ReasonDeleteFailed, plan.why)
	case volumeDelete:
		return reconcile.Result{}, c.deleteVolume(ctx, state.pv)
	case volumeRemove:
		return reconcile.Result{}, c.remove(ctx, state.pv)
	case volumeLeave:
	}
	return reconcile.Result{}, nil
}

// volumeState collects what the decision about a PersistentVolume depends on.
func (c *Controller) volumeState(name string) volumeState {
	s := volumeState{driver: c.cfg.Driver, caps: c.cfg.Capabilities()}
	pv, ok := c.cfg.View.Volumes.Get("", name)
	if !ok {
		return s
	}
	known := c.records.Get(pv.UID)
	s.deleted, s.removed = known.deleted, known.removed
	// The record is dropped once the object is gone from the cache. If it went while the record was read, its absence means
	// nothing, and the volume must not be deleted a second time.
	if again, ok := c.cfg.View.Volumes.Get("", name); !ok || again.UID != pv.UID {
		return s
	}
	s.pv = pv
	s.attachments = len(c.cfg.View.AttachmentsOf(name))
	return s
}

// waitDetached waits for the last VolumeAttachment to go, which the watch will report. An
// event is recorded only when it takes long: a short wait is the normal course of things.
func (c *Controller) waitDetached(pv *corev1.PersistentVolume) reconcile.Result {
	now := time.Now()
	_, known := c.records.Change(pv.UID, func(r *record) {
		if r.attached.IsZero() {
			r.attached = now
		}
	})
	if waited := now.Sub(known.attached); waited < detachGrace {
		return reconcile.Result{After: detachGrace - waited}
	}
	c.cfg.Events.Normal(pv, reasonDelete, "Waiting for detach before the volume is deleted: "+attachedTo(c.cfg.View.AttachmentsOf(pv.Name)))
	return reconcile.Result{}
}

// attachedTo says which VolumeAttachments are left, and on which nodes: five of them.
func attachedTo(attachments []*storagev1.VolumeAttachment) string {
	const most = 5
	left := make([]string, len(attachments))
	for i, va := range attachments {
		left[i] = fmt.Sprintf("VolumeAttachment %s on node %q", va.Name, va.Spec.NodeName)
	}
	slices.Sort(left)
	if more := len(left) - most; more > 0 {
		left = append(left[:most], fmt.Sprintf("%d more", more))
	}
	return strings.Join(left, ", ")
}

// deleteVolume deletes the volume, then its PersistentVolume.
func (c *Controller) deleteVolume(ctx context.Context, pv *corev1.PersistentVolume) error {
	c.records.Change(pv.UID, func(r *record) { r.attached = time.Time{} })
	start := time.Now()
	if err := c.deleteBackend(ctx, pv); err != nil {
		c.cfg.Metrics.Failed(view.VolumeClassName(pv))
		c.cfg.Events.Warning(pv, ReasonDeleteFailed, backend.Describe(err))
		return err
	}
	// The deletion of the object comes back as an event; the record keeps it from a second DeleteVolume.
	c.records.Change(pv.UID, func(r *record) { r.deleted = true })
	c.cfg.Metrics.Done(time.Since(start), view.VolumeClassName(pv))
	c.cfg.VolumeChanged(view.VolumeClassName(pv), pv.Spec.NodeAffinity)
	klog.FromContext(ctx).V(2).Info("Volume is deleted", logging.KeyVolumeID, pv.Spec.CSI.VolumeHandle)
	return c.remove(ctx, pv)
}

// deleteBackend calls DeleteVolume with the secrets of the volume.
func (c *Controller) deleteBackend(ctx context.Context, pv *corev1.PersistentVolume) error {
	secrets, err := c.deletionSecrets(ctx, pv)
	if err != nil {
		return fmt.Errorf("delete volume %q: %w", pv.Spec.CSI.VolumeHandle, err)
	}
	return c.cfg.Backend.Delete(metrics.WithMigrated(ctx, c.cfg.Plugin.Made(pv)), pv.Spec.CSI.VolumeHandle, secrets)
}

// deletionSecrets reads the secret for DeleteVolume. One that does not exist, or that the provisioner may not read, does not keep
// the volume: the driver decides whether it needs it.
func (c *Controller) deletionSecrets(ctx context.Context, pv *corev1.PersistentVolume) (map[string]string, error) {
	var parameters map[string]string
	if class, ok := c.cfg.View.Class(view.VolumeClassName(pv)); ok {
		// An in-tree class that has no CSI form has no parameters: the driver decides whether it needs a secret.
		class, _ = c.cfg.Plugin.Class(klog.FromContext(ctx), class)
		parameters = class.Parameters
	}
	ref, err := deletionSecret(pv, parameters)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.KubeTimeout)
	defer cancel()
	secrets, err := c.cfg.Secrets.Data(ctx, ref)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		klog.FromContext(ctx).Info("Secret for deletion cannot be read, deleting the volume without it", logging.KeyReason, backend.Describe(err))
		return nil, nil
	}
	return secrets, err
}

// deletionSecret returns the secret that a volume is deleted with, nil for none: the one that it was created with, or, where
// that is not recorded, the one that the parameters of its class name.
func deletionSecret(pv *corev1.PersistentVolume, parameters map[string]string) (*corev1.SecretReference, error) {
	name, named := pv.Annotations[volume.AnnDeletionSecretName]
	namespace, placed := pv.Annotations[volume.AnnDeletionSecretNamespace]
	switch {
	case name != "" && namespace != "":
		return &corev1.SecretReference{Name: name, Namespace: namespace}, nil
	case named && placed:
		return nil, nil //nolint:nilnil // it is recorded that there is no secret
	}
	class, err := params.Parse(parameters)
	if err != nil {
		return nil, fmt.Errorf("storage class %q: %w", view.VolumeClassName(pv), err)
	}
	values := params.Values{PVName: pv.Name}
	if ref := pv.Spec.ClaimRef; ref != nil {
		values.ClaimName, values.ClaimNamespace = ref.Name, ref.Namespace
	}
	secret, err := class.ResolveProvision(values)
	if err != nil {
		return nil, fmt.Errorf("storage class %q (set the annotations %q and %q of the PersistentVolume instead): %w",
			view.VolumeClassName(pv), volume.AnnDeletionSecretName, volume.AnnDeletionSecretNamespace, err)
	}
	return secret, nil
}

// remove deletes the object of a volume that is gone. The finalizer goes first: the deletion wakes up other
// controllers that take theirs off by an update, which a change of ours in between would make fail. What an administrator has to mend is an event.
func (c *Controller) remove(ctx context.Context, pv *corev1.PersistentVolume) (err error) {
	if hasFinalizer(pv) {
		err = c.release(ctx, pv)
	}
	if err == nil && pv.DeletionTimestamp == nil {
		err = c.deleteObject(ctx, pv)
	}
	switch {
	case err == nil:
		c.records.Change(pv.UID, func(r *record) { r.removed = true })
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err):
		c.cfg.Events.Warning(pv, ReasonDeleteFailed, "The volume is deleted, and its PersistentVolume is not, which is tried again: "+backend.Describe(err))
	}
	return err
}

// deleteObject deletes a PersistentVolume, and not its successor of the same name.
func (c *Controller) deleteObject(ctx context.Context, pv *corev1.PersistentVolume) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.KubeTimeout)
	defer cancel()
	err := c.cfg.Kube.PersistentVolumes().Delete(ctx, pv.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pv.UID))})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete PersistentVolume %q: %w", pv.Name, err)
	}
	return nil
}
