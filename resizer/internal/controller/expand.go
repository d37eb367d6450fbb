package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/outcome"
	"github.com/longshore-csi/longshore/csikit/reconcile"
)

// errSmaller is a driver that says it has succeeded, and has not: the capacity in its answer is less than it was asked for.
var errSmaller = errors.New("the driver answered with success and a smaller capacity")

// expand expands the volume if that is due.
func (c *Controller) expand(ctx context.Context, v volume) error {
	key := keyOf(v.claim)
	last := c.memory.of(key, v.claim.UID).expand
	plan := planExpand(v, last, c.cfg.Features().Expand)
	if plan.verdict != doExpand {
		return c.completed(ctx, v)
	}
	last = last.of(plan.size.String())
	if last.unsaved {
		return c.saveExpandFailure(ctx, v, plan.size, last)
	}
	if time.Now().Before(last.due) {
		return nil
	}
	err := c.expandTo(ctx, v, plan.size, last)
	return c.expandFailed(ctx, v, plan.size, err)
}

// completed removes the record of the capacity before an expansion once the node has completed it.
func (c *Controller) completed(ctx context.Context, v volume) error {
	if resizeStatus(v.claim) != "" || needsExpand(v.claim) {
		return nil
	}
	c.forgetExpansion(v)
	capacity := storage(v.claim.Status.Capacity)
	if v.pv.Annotations[AnnotationPreResize] == "" || capacity.Cmp(storage(v.pv.Spec.Capacity)) < 0 { // a retained volume, whose node has not expanded it yet
		return nil
	}
	return c.patchPV(ctx, v.pv, map[string]any{AnnotationPreResize: nil}, nil)
}

// expandTo expands the volume to size and records the outcome.
func (c *Controller) expandTo(ctx context.Context, v volume, size resource.Quantity, last attempt) error {
	features := c.cfg.Features()
	switch {
	case features.Lost:
		return features.Check(c.cfg.Driver)
	case !features.expands():
		return fmt.Errorf("driver %q announces EXPAND_VOLUME neither for its controller nor for its node plugin", c.cfg.Driver)
	}
	if c.cfg.WaitUntilUnused && (last.inUse || features.OfflineOnly) {
		if err := c.checkUnused(ctx, v); err != nil {
			return err
		}
	}
	edits := []edit{beginExpansion(size)}
	if !modifying(v.claim, c.memory.of(keyOf(v.claim), v.claim.UID).modify) {
		edits = append(edits, func(claim *corev1.PersistentVolumeClaim) {
			dropConditions(claim, corev1.PersistentVolumeClaimVolumeModifyingVolume)
		})
	}
	claim, err := c.patchClaim(ctx, v.claim, edits...)
	if err != nil {
		return err
	}
	c.memory.change(keyOf(claim), claim.UID, func(a *attempts) {
		a.expand = last.of(size.String())
		a.expand.final = false
	})
	granted, nodeRequired := size, true
	if features.Expand {
		if granted, nodeRequired, err = c.callExpand(ctx, v, size, features); err != nil {
			return err
		}
	}
	return c.saveExpanded(ctx, volume{claim: claim, pv: v.pv, migrated: v.migrated}, granted, nodeRequired)
}

// callExpand calls the driver and returns the capacity that the volume has now, and whether the node has to do its part.
func (c *Controller) callExpand(ctx context.Context, v volume, size resource.Quantity, features Features) (resource.Quantity, bool, error) {
	request, err := v.expandRequest(size, features.SingleNodeMultiWriter)
	if err != nil {
		return size, false, err
	}
	if request.Secrets, err = c.secret(ctx, v.pv.Spec.CSI.ControllerExpandSecretRef); err != nil {
		return size, false, err
	}
	klog.FromContext(ctx).V(2).Info("Expanding volume", logging.KeyVolumeID, request.GetVolumeId(), logging.KeyCapacity, size.String())
	defer c.announce(v.claim, ReasonResizing, fmt.Sprintf("External resizer is resizing volume %s to %s", v.pv.Name, size.String()))()
	ctx, cancel := context.WithTimeout(ctx, c.cfg.ResizeTimeout)
	defer cancel()
	response, err := c.cfg.CSI.ControllerExpandVolume(ctx, request)
	if err != nil {
		return size, false, fmt.Errorf("expand volume %q to %s: %w", request.GetVolumeId(), size.String(), err)
	}
	granted := resource.NewQuantity(response.GetCapacityBytes(), size.Format)
	switch granted.Cmp(size) {
	case 0:
		return size, response.GetNodeExpansionRequired(), nil
	case -1:
		return size, false, fmt.Errorf("expand volume %q to %s: %w of %s", request.GetVolumeId(), size.String(), errSmaller, granted.String())
	}
	return *granted, response.GetNodeExpansionRequired(), nil
}

// saveExpanded records a new capacity: on the volume, then on the claim, which is complete unless the node has to do its part.
func (c *Controller) saveExpanded(ctx context.Context, v volume, capacity resource.Quantity, nodeRequired bool) error {
	annotations := map[string]any{}
	before := storage(v.claim.Status.Capacity)
	switch recorded := v.pv.Annotations[AnnotationPreResize]; {
	case nodeRequired && c.cfg.AnnotatePreResize && recorded != before.String():
		annotations[AnnotationPreResize] = before.String()
	case !nodeRequired && recorded != "":
		annotations[AnnotationPreResize] = nil
	}
	if had := storage(v.pv.Spec.Capacity); had.Cmp(capacity) != 0 || len(annotations) > 0 {
		spec := map[string]any{"capacity": corev1.ResourceList{corev1.ResourceStorage: capacity}}
		if err := c.patchPV(ctx, v.pv, annotations, spec); err != nil {
			return err
		}
	}
	logger := klog.FromContext(ctx).WithValues(logging.KeyCapacity, capacity.String())
	if nodeRequired {
		if _, err := c.patchClaim(ctx, v.claim, awaitNode(capacity)); err != nil {
			return err
		}
		logger.V(2).Info("Volume is expanded, the node expands its file system")
		c.cfg.Events.Normal(v.claim, ReasonNodeRequired, "Require file system resize of volume on node, to "+capacity.String())
		// A node that finds the size infeasible is not asked again at once.
		c.memory.change(keyOf(v.claim), v.claim.UID, func(a *attempts) {
			a.expand = attempt{target: capacity.String(), due: time.Now().Add(c.cfg.Retry.Max)}
		})
	} else {
		if _, err := c.patchClaim(ctx, v.claim, endExpansion(capacity)); err != nil {
			return err
		}
		logger.V(2).Info("Volume is expanded")
		c.cfg.Events.Normal(v.claim, ReasonResized, "Resize volume succeeded, the capacity is "+capacity.String())
		c.forgetExpansion(v)
	}
	return nil
}

func (c *Controller) forgetExpansion(v volume) {
	c.memory.change(keyOf(v.claim), v.claim.UID, func(a *attempts) { a.expand = attempt{} })
}

// expandFailed records a failure, nil is none, and the time of the next attempt. An error that the API server will overcome is returned,
// for the queue to retry.
func (c *Controller) expandFailed(ctx context.Context, v volume, size resource.Quantity, failure error) error {
	if failure == nil || ctx.Err() != nil || isTransient(failure) {
		return failure
	}
	target := size.String()
	last := c.rememberFailure(ctx, v, target, failure)
	klog.FromContext(ctx).Error(failure, "Expansion did not succeed", logging.KeyCapacity, target, logging.KeyDelay, time.Until(last.due))
	message := fmt.Sprintf("resize volume %q to %s: %s", v.pv.Name, target, outcome.Text(failure))
	if had := storage(v.claim.Status.Capacity); outcome.Code(failure) == codes.OutOfRange {
		message += fmt.Sprintf("; request another size, of more than the %s that it has", had.String())
	}
	c.cfg.Events.Warning(v.claim, ReasonResizeFailed, message)
	if !last.unsaved {
		return nil // the status says that it is in progress, and it may be
	}
	return c.saveExpandFailure(ctx, v, size, last)
}

// saveExpandFailure has the claim say how the last attempt has failed. It comes before everything else, as users and autoscalers decide by it.
func (c *Controller) saveExpandFailure(ctx context.Context, v volume, size resource.Quantity, last attempt) error {
	if current, ok := c.find(keyOf(v.claim)); ok && current.claim.UID == v.claim.UID && !controllerIsDone(current.claim, size) {
		if _, err := c.patchClaim(ctx, current.claim, failExpansion(last.err, last.infeasible)); err != nil {
			return err
		}
	}
	c.memory.change(keyOf(v.claim), v.claim.UID, func(a *attempts) { a.expand.unsaved = false })
	return nil
}

// controllerIsDone reports whether the expansion of a claim to size needs the controller no more: its end was recorded, although the API
// server has answered with an error.
func controllerIsDone(claim *corev1.PersistentVolumeClaim, size resource.Quantity) bool {
	if !needsExpand(claim) {
		return true
	}
	status, allocated := resizeStatus(claim), storage(claim.Status.AllocatedResources)
	return (status == corev1.PersistentVolumeClaimNodeResizePending || status == corev1.PersistentVolumeClaimNodeResizeInProgress) && allocated.Cmp(size) >= 0
}

// rememberFailure remembers an attempt that has failed and returns it. One that waits until the volume is not used is woken by the end of
// the use; if nothing that can be watched uses the volume, it is repeated with the usual backoff.
func (c *Controller) rememberFailure(ctx context.Context, v volume, target string, failure error) attempt {
	key := keyOf(v.claim)
	refused := outcome.Code(failure) == codes.FailedPrecondition && c.cfg.WaitUntilUnused
	inUse := refused || errors.Is(failure, errInUse)
	c.memory.change(key, v.claim.UID, func(a *attempts) {
		a.expand = c.retry(key, a.expand.of(target), failure, inUse || isInfeasibleSize(failure))
		a.expand.inUse = inUse || a.expand.inUse && !isFinal(failure)
		if isAnswer(failure) {
			a.expand.final = isFinal(failure)
		}
		a.expand.infeasible = isInfeasibleSize(failure)
		a.expand.unsaved = a.expand.final || !isAnswer(failure)
	})
	if inUse && !errors.Is(c.checkUnused(ctx, v), errInUse) {
		c.memory.change(key, v.claim.UID, func(a *attempts) {
			a.expand.due = time.Now().Add(reconcile.Pause(c.cfg.Retry, key, a.expand.failures-1))
		})
	}
	return c.memory.of(key, v.claim.UID).expand
}
