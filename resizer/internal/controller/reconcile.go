package controller

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/metrics"
	"github.com/longshore-csi/longshore/csikit/outcome"
	"github.com/longshore-csi/longshore/csikit/reconcile"
)

// announceAfter is how long an operation takes before an event says that it is in progress. The outcome has an event of its own.
const announceAfter = time.Second

// reconcile expands and modifies the volume of a claim. If both are due and neither has begun, the driver gets both calls at once. An operation whose outcome is
// not known comes first, and the other one waits for its end.
func (c *Controller) reconcile(ctx context.Context, key string) (reconcile.Result, error) {
	l := &look{Controller: c, read: map[string]readClass{}}
	v, ok := c.find(key)
	if !ok {
		return reconcile.Result{}, nil
	}
	defer c.forgetGone(v.claim)
	logger := klog.FromContext(ctx).WithValues(logging.KeyClaim, key, logging.KeyVolume, v.pv.Name)
	ctx = metrics.WithMigrated(klog.NewContext(ctx, logger), v.migrated)
	last := c.memory.of(key, v.claim.UID)
	if done, err := l.both(ctx, v, last); done {
		return reconcile.Result{}, kube.IgnoreGone(err)
	}
	v, ok, err := l.oneAfterTheOther(ctx, v, last)
	if err != nil || !ok {
		return reconcile.Result{}, kube.IgnoreGone(err)
	}
	pause := l.pause(ctx, v, c.memory.of(key, v.claim.UID))
	if pause == now {
		c.queue.Add(key)
		return reconcile.Result{}, nil
	}
	return reconcile.Result{After: pause}, nil
}

// oneAfterTheOther expands and modifies the volume of a claim as far as either is due. It returns the volume as it is then, and false if nothing is left to do.
func (c *look) oneAfterTheOther(ctx context.Context, v volume, last attempts) (volume, bool, error) {
	first, second := c.expand, c.modify
	if modifying(v.claim, last.modify) && !expanding(v.claim, last.expand) {
		first, second = c.modify, c.expand
	}
	expands := c.expandsNext(v, last)
	if err := first(ctx, v); err != nil {
		return v, false, err
	}
	anotherWorker := expands && c.needsSync(v.claim) // modifies it
	current, ok := c.find(keyOf(v.claim))
	if !ok || anotherWorker || c.isBusy(current) {
		return current, ok, nil
	}
	if err := second(ctx, current); err != nil || !c.needsSync(current.claim) {
		return current, false, err // what the first has left, or nothing
	}
	current, ok = c.find(keyOf(v.claim))
	return current, ok, nil
}

// isBusy reports whether the driver may be working on a volume.
func (c *Controller) isBusy(v volume) bool {
	last := c.memory.of(keyOf(v.claim), v.claim.UID)
	return expanding(v.claim, last.expand) || modifying(v.claim, last.modify)
}

// forgetGone drops what an operation has remembered of a claim that was deleted meanwhile.
func (c *Controller) forgetGone(claim *corev1.PersistentVolumeClaim) {
	if current, ok := c.claims.Get(claim.Namespace, claim.Name); !ok || current.UID != claim.UID {
		c.memory.forgetUID(keyOf(claim), claim.UID)
	}
}

// expandsNext reports whether the next operation on a volume is its expansion.
func (c *Controller) expandsNext(v volume, last attempts) bool {
	if modifying(v.claim, last.modify) && !expanding(v.claim, last.expand) {
		return false
	}
	wait := c.untilExpand(v, last.expand)
	return wait == now
}

// now is the pause before what is due, as 0 means that nothing is.
const now = time.Nanosecond

// pause returns the time until an operation on the volume is due, 0 if none is. What the driver may be doing holds up the other operation.
func (c *look) pause(ctx context.Context, v volume, last attempts) time.Duration {
	expand, modify := time.Duration(0), time.Duration(0)
	if !modifying(v.claim, last.modify) || expanding(v.claim, last.expand) {
		expand = c.untilExpand(v, last.expand)
	}
	if !expanding(v.claim, last.expand) {
		modify = c.untilModify(ctx, v, last.modify)
	}
	if expand == 0 || modify == 0 {
		return max(expand, modify)
	}
	return min(expand, modify)
}

// untilExpand returns the time until the next attempt to expand the volume, 0 if none is needed.
func (c *Controller) untilExpand(v volume, last attempt) time.Duration {
	plan := planExpand(v, last, c.cfg.Features().Expand)
	if plan.verdict != doExpand {
		return 0
	}
	return max(now, time.Until(last.of(plan.size.String()).due))
}

// untilModify returns the time until the next attempt to modify the volume, 0 if none is needed.
func (c *look) untilModify(ctx context.Context, v volume, last attempt) time.Duration {
	if !c.cfg.AttributesClasses || !needsModify(v.claim) {
		return 0
	}
	find, err := c.findClasses(ctx, v.claim)
	if err != nil {
		return max(now, time.Until(last.due)) // the failure was recorded
	}
	plan := planModify(v, last, find)
	if plan.verdict != doModify && plan.verdict != doCancel {
		return 0
	}
	return max(now, time.Until(last.of(plan.target).due))
}

// announce records an event if ctx lasts for more than moments.
func (c *Controller) announce(claim *corev1.PersistentVolumeClaim, reason, message string) (stop func() bool) {
	return time.AfterFunc(announceAfter, func() { c.cfg.Events.Normal(claim, reason, message) }).Stop
}

// patchClaim writes the changes to the status of a claim, if there are any, and returns the claim with them. After a write that may have been
// applied although it failed, it has the API server confirm that before is the newest state: the cache may not know of that write.
func (c *Controller) patchClaim(ctx context.Context, before *corev1.PersistentVolumeClaim, edits ...edit) (*corev1.PersistentVolumeClaim, error) {
	key := keyOf(before)
	patch, err := statusPatch(before, edited(before, edits...))
	if err == nil && patch == nil && c.memory.of(key, before.UID).unsure {
		patch, err = json.Marshal(map[string]any{"metadata": preconditions(before)})
	}
	if err != nil || patch == nil {
		return before, err
	}
	ctx, cancel := c.kubeDeadline(ctx)
	defer cancel()
	patched, err := c.cfg.Kube.PersistentVolumeClaims(before.Namespace).
		Patch(ctx, before.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	c.memory.change(key, before.UID, func(a *attempts) { a.unsure = err != nil })
	if err != nil {
		return nil, kube.PatchError("PersistentVolumeClaim", key, err)
	}
	c.claims.Remember(patched)
	return patched, nil
}

// patchPV applies a strategic merge patch to the PersistentVolume that pv was read from.
func (c *Controller) patchPV(ctx context.Context, pv *corev1.PersistentVolume, annotations, spec map[string]any) error {
	patch, err := volumePatch(pv, annotations, spec)
	if err != nil {
		return err
	}
	ctx, cancel := c.kubeDeadline(ctx)
	defer cancel()
	patched, err := c.cfg.Kube.PersistentVolumes().Patch(ctx, pv.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return kube.PatchError("PersistentVolume", pv.Name, err)
	}
	c.pvs.Remember(patched)
	return nil
}

// secret reads a secret, nil without a reference.
func (c *Controller) secret(ctx context.Context, ref *corev1.SecretReference) (map[string]string, error) {
	ctx, cancel := c.kubeDeadline(ctx)
	defer cancel()
	return c.cfg.Secrets.Data(ctx, ref)
}

// isAnswer reports whether the driver has answered the call: with an error, or with success and less than was asked for.
func isAnswer(err error) bool { return outcome.FromDriver(err) || errors.Is(err, errSmaller) }

// isFinal reports whether the driver has answered that it failed. Everything else may still be in progress, RESOURCE_EXHAUSTED included:
// gRPC itself answers so, when a call was sent.
func isFinal(err error) bool {
	class := outcome.Of(err)
	return errors.Is(err, errSmaller) || !class.MayStillRun() && class != outcome.Exhausted
}

// isInfeasibleSize reports whether the driver will never expand the volume to the size (CSI v1.13, "ControllerExpandVolume").
func isInfeasibleSize(err error) bool {
	return outcome.Of(err) == outcome.Infeasible || outcome.Code(err) == codes.NotFound
}

// isTransient reports whether an error is none that users can fix, so that it is not reported to them.
func isTransient(err error) bool { return kube.IsTransient(err) || errors.Is(err, kube.ErrGone) }

// retry counts a failure of an attempt and returns it with the time of the next one. slowly: not before the longest pause.
func (c *Controller) retry(key string, a attempt, failure error, slowly bool) attempt {
	pause := c.cfg.Retry.Max
	if !slowly {
		pause = reconcile.Pause(c.cfg.Retry, key, a.failures)
	}
	a.failures++
	a.due, a.err = time.Now().Add(pause), outcome.Text(failure)
	return a
}
