package controller

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/outcome"
)

// moment is how far apart the times of two operations may be that are sent at once: those of repeated attempts differ by as much as their outcomes took to be recorded.
const moment = time.Second

// both expands and modifies a volume at the same time, if both are due and the driver works on neither, and reports whether it has done so. Some drivers make one change
// of the storage of both calls, where the storage allows few a day (aws-ebs-csi-driver, "Volume Modification"). A driver that answers ABORTED, as another
// call for the volume runs (CSI v1.13, "Concurrency"), gets one call at a time from then on.
func (c *look) both(ctx context.Context, v volume, last attempts) (done bool, err error) {
	size, class := c.dueTogether(ctx, v, last)
	if class == nil {
		return false, nil
	}
	v.claim, err = c.patchClaim(ctx, v.claim, beginModification(class.Name), beginExpansion(size))
	if err != nil {
		return true, err
	}
	c.memory.change(keyOf(v.claim), v.claim.UID, func(a *attempts) {
		a.expand, a.modify = a.expand.of(size.String()), a.modify.of(class.Name)
		a.expand.final, a.modify.final = false, false
	})
	begun := v
	outcomes := make(chan func(volume) error, 2) // recorded one after the other, as both change the claim
	go func() {
		granted, nodeRequired, err := c.callExpand(ctx, begun, size, c.cfg.Features())
		outcomes <- func(v volume) error {
			if c.noticeAborted(ctx, err); err == nil {
				err = c.saveExpanded(ctx, v, granted, nodeRequired)
			}
			return c.expandFailed(ctx, v, size, err)
		}
	}()
	go func() {
		err := c.callModify(ctx, begun, class)
		outcomes <- func(v volume) error {
			if c.noticeAborted(ctx, err); err == nil {
				err = c.saveModified(ctx, v, class)
			}
			return c.modifyFailed(ctx, v, class.Name, err)
		}
	}()
	for range cap(outcomes) {
		save := <-outcomes
		if current, ok := c.find(keyOf(v.claim)); ok && current.claim.UID == v.claim.UID {
			v = current
		}
		err = errors.Join(err, save(v))
	}
	if err == nil {
		c.queue.Add(keyOf(v.claim)) // what failed is due again at some time
	}
	return true, err
}

// dueTogether returns the size and the class that a volume is to have, without a class unless both are due and the driver can be sent both.
func (c *look) dueTogether(ctx context.Context, v volume, last attempts) (size resource.Quantity, class *storagev1.VolumeAttributesClass) {
	if !c.canBoth(last.expand) || !needsExpand(v.claim) || !needsModify(v.claim) || expanding(v.claim, last.expand) || modifying(v.claim, last.modify) {
		return size, nil
	}
	find, err := c.findClasses(ctx, v.claim)
	if err != nil {
		return size, nil // modify records the error
	}
	expand, modify := planExpand(v, last.expand, true), planModify(v, last.modify, find)
	if expand.verdict != doExpand || modify.verdict != doModify {
		return size, nil
	}
	for _, attempt := range []attempt{last.expand.of(expand.size.String()), last.modify.of(modify.target)} {
		if attempt.unsaved || time.Until(attempt.due) > moment {
			return size, nil
		}
	}
	return expand.size, modify.class
}

// canBoth reports whether the driver can be asked to expand and to modify a volume at the same time, after the last attempt to expand it.
func (c *Controller) canBoth(last attempt) bool {
	features := c.cfg.Features()
	offline := c.cfg.WaitUntilUnused && (last.inUse || features.OfflineOnly)
	return c.cfg.AttributesClasses && features.Expand && features.Modify && !features.Lost && !offline && !c.oneByOne.Load()
}

// noticeAborted notices a driver that works on one call for a volume at a time.
func (c *Controller) noticeAborted(ctx context.Context, err error) {
	if outcome.FromDriver(err) && outcome.Code(err) == codes.Aborted && !c.oneByOne.Swap(true) {
		klog.FromContext(ctx).Info("The driver refuses to expand and modify a volume at the same time: from now on it does one after the other")
	}
}
