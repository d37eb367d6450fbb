package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/outcome"
)

// errClassNotUsable is a VolumeAttributesClass that cannot be applied to the volume.
var errClassNotUsable = errors.New("the volume is modified as soon as there is such a class")

// modify applies the VolumeAttributesClass of the claim if that is due.
func (c *look) modify(ctx context.Context, v volume) error {
	if !c.cfg.AttributesClasses || !needsModify(v.claim) {
		return nil
	}
	find, err := c.findClasses(ctx, v.claim)
	if err != nil {
		return c.modifyFailed(ctx, v, wantedClass(v.claim), err)
	}
	last := c.memory.of(keyOf(v.claim), v.claim.UID).modify
	plan := planModify(v, last, find)
	switch plan.verdict {
	case doCancel:
		return c.cancelModify(ctx, v)
	case doWait:
		return c.awaitClass(ctx, v, plan)
	case doModify:
	default:
		return nil
	}
	last = last.of(plan.target)
	if last.unsaved {
		return c.saveModifyFailure(ctx, v, last)
	}
	if time.Now().Before(last.due) {
		return nil
	}
	return c.modifyFailed(ctx, v, plan.target, c.apply(ctx, v, plan.class, last))
}

// cancelModify forgets a modification that the user has taken back.
func (c *Controller) cancelModify(ctx context.Context, v volume) error {
	target, _ := targetClass(v.claim)
	if _, err := c.patchClaim(ctx, v.claim, cancelModification); err != nil {
		return err
	}
	if target != "" {
		c.cfg.Events.Normal(v.claim, ReasonModifyCanceled, fmt.Sprintf("Canceled the modification of volume %s to VolumeAttributesClass %s", v.pv.Name, target))
	}
	c.forgetModification(v)
	return nil
}

// awaitClass records that the class cannot be applied. A class that is created wakes the claim.
func (c *Controller) awaitClass(ctx context.Context, v volume, plan modifyPlan) error {
	err := fmt.Errorf("VolumeAttributesClass %q does not exist: %w", plan.target, errClassNotUsable)
	if plan.class != nil {
		err = fmt.Errorf("VolumeAttributesClass %q is of driver %q, the volume of driver %q: %w", plan.target, plan.class.DriverName, c.cfg.Driver, errClassNotUsable)
	}
	_, failed := c.patchClaim(ctx, v.claim, awaitClass(plan.target, err.Error(), plan.class != nil))
	if failed == nil {
		c.cfg.Events.Warning(v.claim, ReasonModifyFailed, err.Error())
		// Without its class, a modification cannot be driven to its end: it holds up neither an expansion nor another class.
		c.memory.change(keyOf(v.claim), v.claim.UID, func(a *attempts) {
			a.modify = a.modify.of(plan.target)
			a.modify.final, a.modify.err = true, err.Error()
		})
	}
	return failed
}

// apply applies a class and records the outcome.
func (c *Controller) apply(ctx context.Context, v volume, class *storagev1.VolumeAttributesClass, last attempt) error {
	if !c.cfg.Features().Modify {
		return fmt.Errorf("driver %q does not announce MODIFY_VOLUME", c.cfg.Driver)
	}
	claim, err := c.patchClaim(ctx, v.claim, beginModification(class.Name))
	if err != nil {
		return err
	}
	c.memory.change(keyOf(claim), claim.UID, func(a *attempts) {
		a.modify = last
		a.modify.final = false
	})
	v.claim = claim
	if err := c.callModify(ctx, v, class); err != nil {
		return err
	}
	return c.saveModified(ctx, v, class)
}

// saveModified records that a class is in effect.
func (c *Controller) saveModified(ctx context.Context, v volume, class *storagev1.VolumeAttributesClass) error {
	if valueOf(v.pv.Spec.VolumeAttributesClassName) != class.Name {
		if err := c.patchPV(ctx, v.pv, nil, map[string]any{"volumeAttributesClassName": class.Name}); err != nil {
			return err
		}
	}
	if _, err := c.patchClaim(ctx, v.claim, endModification(class.Name)); err != nil {
		return err
	}
	klog.FromContext(ctx).V(2).Info("Volume is modified", "class", class.Name)
	c.cfg.Events.Normal(v.claim, ReasonModified, fmt.Sprintf("Modified volume %s to VolumeAttributesClass %s", v.pv.Name, class.Name))
	c.forgetModification(v)
	return nil
}

// callModify calls the driver with the parameters of a class.
func (c *Controller) callModify(ctx context.Context, v volume, class *storagev1.VolumeAttributesClass) error {
	id := v.pv.Spec.CSI.VolumeHandle
	if id == "" {
		return fmt.Errorf("PersistentVolume %q: %w", v.pv.Name, errHandle)
	}
	secrets, err := c.secret(ctx, v.modifySecret())
	if err != nil {
		return err
	}
	klog.FromContext(ctx).V(2).Info("Modifying volume", logging.KeyVolumeID, id, "class", class.Name)
	defer c.announce(v.claim, ReasonModifying, fmt.Sprintf("External resizer is modifying volume %s to VolumeAttributesClass %s", v.pv.Name, class.Name))()
	ctx, cancel := context.WithTimeout(ctx, c.cfg.ModifyTimeout)
	defer cancel()
	_, err = c.cfg.CSI.ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{
		VolumeId: id, Secrets: secrets, MutableParameters: c.mutableParameters(v, class),
	})
	if err != nil {
		return fmt.Errorf("modify volume %q to VolumeAttributesClass %q: %w", id, class.Name, err)
	}
	return nil
}

// mutableParameters returns what the class sets, and the names of claim and volume if these are asked for: drivers trust them, so that no class sets others.
func (c *Controller) mutableParameters(v volume, class *storagev1.VolumeAttributesClass) map[string]string {
	if !c.cfg.ExtraMetadata {
		return class.Parameters
	}
	parameters := maps.Clone(class.Parameters)
	if parameters == nil {
		parameters = map[string]string{}
	}
	maps.Copy(parameters, map[string]string{keyClaimName: v.claim.Name, keyClaimNamespace: v.claim.Namespace, keyVolumeName: v.pv.Name})
	return parameters
}

func (c *Controller) forgetModification(v volume) {
	c.memory.change(keyOf(v.claim), v.claim.UID, func(a *attempts) { a.modify = attempt{} })
}

// modifyFailed records a failure, nil is none, and the time of the next attempt. An error that the API server will overcome is returned,
// for the queue to retry.
func (c *Controller) modifyFailed(ctx context.Context, v volume, target string, failure error) error {
	if failure == nil || ctx.Err() != nil || isTransient(failure) {
		return failure
	}
	key := keyOf(v.claim)
	infeasible := outcome.Of(failure) == outcome.Infeasible && outcome.FromDriver(failure)
	var last attempt
	c.memory.change(key, v.claim.UID, func(a *attempts) {
		a.modify = c.retry(key, a.modify.of(target), failure, infeasible)
		a.modify.infeasible, a.modify.unsaved, a.modify.code = infeasible, true, ""
		if outcome.FromDriver(failure) {
			a.modify.final, a.modify.code = isFinal(failure), outcome.Code(failure).String()
		}
		last = a.modify
	})
	klog.FromContext(ctx).Error(failure, "Modification did not succeed", "class", target, logging.KeyDelay, time.Until(last.due))
	c.cfg.Events.Warning(v.claim, ReasonModifyFailed, fmt.Sprintf("modify volume %q to VolumeAttributesClass %q: %s", v.pv.Name, target, outcome.Text(failure)))
	return c.saveModifyFailure(ctx, v, last)
}

// saveModifyFailure has the claim say how the last attempt has failed.
func (c *Controller) saveModifyFailure(ctx context.Context, v volume, last attempt) error {
	if current, ok := c.find(keyOf(v.claim)); ok && current.claim.UID == v.claim.UID {
		if _, err := c.patchClaim(ctx, current.claim, failModification(last.target, last.code, last.err, last.infeasible)); err != nil {
			return err
		}
	}
	c.memory.change(keyOf(v.claim), v.claim.UID, func(a *attempts) { a.modify.unsaved = false })
	return nil
}
