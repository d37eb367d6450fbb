package claim

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/provisioner/internal/backend"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
	"github.com/longshore-csi/longshore/topology"
)

// This file goes on with volumes that another process had in progress (docs/adr/0007). Their requests are repeated until the driver has answered; then the claim
// decides, as the API server has it. A volume is deleted only where nothing speaks for it: no claim, no PersistentVolume, and no sign that it ever had one.

// maxEvents is how many events of a claim are read: any user who may create events can make them.
const maxEvents = 500

// found goes on with a volume that the request of another process has made. It is saved if the claim asks for the same now, and deleted otherwise.
func (c *Controller) found(ctx context.Context, intent journal.Intent, created *csi.Volume) (reconcile.Result, error) {
	intent.VolumeID = created.GetVolumeId()
	claim, err := c.liveClaim(ctx, intent.Spec.Claim)
	if err != nil {
		return reconcile.Result{}, err
	}
	if why := c.whyUnwantedBy(claim, intent.Spec.Name); why != "" {
		return c.unwanted(ctx, intent, intent.VolumeID, why)
	}
	holder, err := c.holder(ctx, intent)
	if err != nil {
		return reconcile.Result{}, err
	}
	if holder != "" {
		c.close(intent)
		c.claims.Wake(keyOf(claim))
		return reconcile.Result{}, nil
	}
	state := c.stateOf(ctx, claim)
	if plan := planNew(state); plan.verb != claimCreate {
		return reconcile.Result{}, c.failed(claim, fmt.Errorf("volume %q exists, and the claim does not get it yet: %s", intent.VolumeID, plan.why))
	}
	now, err := c.prepare(ctx, state)
	if errors.As(err, new(volume.BlockedError)) {
		return reconcile.Result{}, c.failed(claim, err)
	}
	if err != nil {
		return c.unprepared(ctx, claim, err)
	}
	if !isSame(intent.Request, now.Request, created, view.SelectedNode(claim) != "") {
		return c.unwanted(ctx, intent, intent.VolumeID, "the claim asks for another volume since")
	}
	intent.Spec, intent.Request, intent.Recovered, intent.Secrets = now.Spec, now.Request, false, now.Secrets
	return c.save(ctx, intent, created)
}

// finishedBefore reports whether another process has saved the volume of its record: the record outlived that by seconds.
func (c *Controller) finishedBefore(intent journal.Intent) bool {
	pv, ok := c.view.Volumes.Get("", intent.Spec.Name)
	return ok && intent.Recovered && intent.Stage != journal.Undoing && isFor(pv, intent.UID()) && !madeElsewhere(pv, c.node())
}

// isSame reports whether a volume that was requested once is what is requested now, wherever it was to be then, if it is accessible from where it has to be now:
// from the segment that is preferred most, which is that of the selected node, or without one from any that is allowed.
func isSame(then, now *csi.CreateVolumeRequest, created *csi.Volume, selected bool) bool {
	then, required := backend.WithSecrets(then, nil), now.GetAccessibilityRequirements()
	then.AccessibilityRequirements = required
	from, allowed := created.GetAccessibleTopology(), required.GetRequisite()
	if preferred := required.GetPreferred(); len(allowed) == 0 || selected && len(preferred) > 0 {
		allowed = preferred[:min(1, len(preferred))]
	}
	return proto.Equal(then, now) && (len(from) == 0 || len(allowed) == 0 || slices.ContainsFunc(allowed, func(t *csi.Topology) bool { return isAccessible(from, t) }))
}

// isAccessible reports whether one of the segments that a volume is accessible from matches the labels of another one.
func isAccessible(from []*csi.Topology, where *csi.Topology) bool {
	return slices.ContainsFunc(from, func(t *csi.Topology) bool {
		segment, err := topology.FromTopology(t)
		return err == nil && segment.Matches(where.GetSegments())
	})
}

// liveClaim reads a claim from the server; nil: it does not exist.
func (c *Controller) liveClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Settings.KubeTimeout)
	defer cancel()
	live, err := c.cfg.Kube.PersistentVolumeClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && live.UID != claim.UID:
		return nil, nil //nolint:nilnil // its absence is an answer
	case err != nil:
		return nil, fmt.Errorf("get claim %s: %w", klog.KObj(claim), err)
	}
	return live, nil
}

// mayDelete says why a volume must not be deleted that its claim does not want any more, empty if it may. Another process may have provisioned the claim
// after the request of a former one: then the volume may be kept on purpose, although its PersistentVolume is gone, too. Kubernetes keeps events
// for an hour, as long as a record is trusted. What the instance of another node has provisioned is another volume.
func (c *Controller) mayDelete(ctx context.Context, intent journal.Intent) (string, error) {
	if !intent.Recovered {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Settings.KubeTimeout)
	defer cancel()
	claim := intent.Spec.Claim
	events, err := c.cfg.Kube.Events(claim.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: "involvedObject.uid=" + string(claim.UID) + ",reason=" + reasonSucceeded, Limit: maxEvents,
	})
	switch {
	case apierrors.IsForbidden(err):
		return "the events of its claim, which may say that it was provisioned, may not be listed", nil
	case err != nil:
		return "", fmt.Errorf("list the events of claim %s before its volume is deleted: %w", klog.KObj(claim), err)
	}
	return provisionedSince(events, c.node()), nil
}

// provisionedSince says why the events ProvisioningSucceeded of a claim speak for its volume, empty if they do not.
func provisionedSince(events *corev1.EventList, node view.Node) string {
	switch {
	case slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return !node.Alone() || e.Source.Host == "" || e.Source.Host == node.Name }):
		return "an event says that its claim was provisioned since"
	case events.Continue != "":
		return fmt.Sprintf("its claim has more than %d events that say that it was provisioned, which are not all read", maxEvents)
	}
	return ""
}

// leave leaves a volume that may exist to an administrator.
func (c *Controller) leave(ctx context.Context, intent journal.Intent, why string) error {
	intent.Stage, intent.Reason = journal.Reported, why
	if err := c.cfg.Journal.Update(intent); err != nil {
		return err
	}
	_, err := c.reconsider(ctx, intent)
	return err
}

// reconsider looks at a volume that this process may neither request nor delete. A claim that wants it is provisioned as if there was no record.
func (c *Controller) reconsider(ctx context.Context, intent journal.Intent) (reconcile.Result, error) {
	claim, err := c.liveClaim(ctx, intent.Spec.Claim)
	if err != nil {
		return reconcile.Result{}, err
	}
	if c.whyUnwantedBy(claim, intent.Spec.Name) == "" {
		klog.FromContext(ctx).Info("Record of another process is not needed: its claim is provisioned", logging.KeyReason, intent.Reason)
		c.close(intent)
		c.claims.Wake(keyOf(claim))
		return reconcile.Result{}, nil
	}
	why := fmt.Sprintf("Volume %q of claim %s may be left in the storage system. It is not deleted: %s. If it is not needed, delete it there; then set the annotation %s: %q on the Lease",
		intent.Spec.Name, klog.KObj(intent.Spec.Claim), intent.Reason, journal.AnnotationAbandon, intent.UID())
	klog.FromContext(ctx).Error(errors.New(intent.Reason), "Volume may be left in the storage system, and is not deleted", logging.KeyVolumeName, intent.Spec.Name, logging.KeyVolumeID, intent.VolumeID)
	c.cfg.Events.Warning(c.csiDriver(), reasonLeft, why)
	return reconcile.Result{}, nil
}

// csiDriver is what events are about that are about no object of a user.
func (c *Controller) csiDriver() *storagev1.CSIDriver {
	return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: c.driver}}
}
