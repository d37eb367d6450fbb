package backend

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/driverkit/loop"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// Stage implements volume.NodeService. The record is written first, so that
// the mount is known however the call ends.
func (n *Node) Stage(ctx context.Context, req *volume.StageRequest) error {
	persistent, stage, err := n.checkStage(req)
	if err != nil {
		return err
	}
	known := n.get(req.ID)
	if known == nil {
		known = &volume.NodeVolume{ID: req.ID}
	}
	before := known.Clone()
	known.Home, known.Stage = persistent.Home, stage
	if known.Form().Disk {
		id, err := loop.Identify(n.disk(known))
		if err != nil {
			return fmt.Errorf("stage volume %q: look at its file: %w", req.ID, err)
		}
		stage.Disk = volume.FileID(id)
	}
	n.cfg.Step.at("stage:record")
	if err := n.save(known); err != nil {
		return errors.Join(err, n.save(before))
	}
	if err := n.checkHeld(known); err != nil {
		return errors.Join(err, n.save(before))
	}
	n.cfg.Step.at("stage:mount")
	settings := n.settingsOf(known, persistent)
	err = n.presenter(known).stage(ctx, known)
	if err == nil {
		err = n.setReadAhead(ctx, known, settings)
	}
	if err != nil {
		return errors.Join(err, n.undoStage(ctx, before, known))
	}
	n.setApplied(req.ID, settings)
	klog.FromContext(ctx).V(2).Info("Staged volume", logging.KeyVolumeID, req.ID, logging.KeyStagingPath, stage.Path)
	return nil
}

// undoStage undoes a failed stage. The record stays until that has succeeded, so
// that Unstage knows the rest; the ErrBusy means for the CO that the outcome is not
// final. Where targets use an earlier stage, nothing is undone.
func (n *Node) undoStage(ctx context.Context, before, known *volume.NodeVolume) error {
	if len(before.Targets) > 0 {
		return nil
	}
	ctx, cancel := withUndoTimeout(ctx)
	defer cancel()
	if err := n.presenter(known).release(ctx, known); err != nil {
		return fmt.Errorf("undo staging of volume %q: %w: %w", known.ID, volume.ErrBusy, err)
	}
	return n.save(before)
}

// checkHeld reports whether writes to the volume are allowed. The record of the node
// is on disk by now: either the controller sees it, or the node sees that the volume
// is held.
func (n *Node) checkHeld(known *volume.NodeVolume) error {
	if known.Stage.CannotWrite() {
		return nil
	}
	persistent, err := n.lookupPersistent(known.ID)
	if err != nil {
		return err
	}
	return persistent.CheckWritable()
}

// checkStage reports whether the volume may be staged, and returns its record and
// the stage, completed from that record.
func (n *Node) checkStage(req *volume.StageRequest) (*volume.Volume, *volume.Stage, error) {
	if err := n.checkPath(req.Stage.Path); err != nil {
		return nil, nil, err
	}
	persistent, err := n.lookupPersistent(req.ID)
	if err != nil {
		return nil, nil, err
	}
	if err := n.checkUsable(persistent, req.Stage.Capability); err != nil {
		return nil, nil, err
	}
	stage := req.Stage
	stage.FSType = persistent.FSType
	if n.cfg.Attach {
		attached := persistent.PublishedOn(n.cfg.NodeID)
		if attached == nil {
			return nil, nil, fmt.Errorf("stage volume %q: it is not attached to node %q: %w", req.ID, n.cfg.NodeID, volume.ErrPrecondition)
		}
		stage.ReadOnly = attached.ReadOnly
	}
	return persistent, &stage, nil
}

// checkUsable reports whether a volume can be used here as the capability says.
func (n *Node) checkUsable(persistent *volume.Volume, c volume.Capability) error {
	if err := persistent.CheckAccess(c); err != nil {
		return err
	}
	if err := n.Support().CheckCapability(persistent.Form(), c); err != nil {
		return err
	}
	if err := persistent.CheckReachable(n.cfg.NodeID); err != nil {
		return err
	}
	if err := n.checkFSType(persistent.FSType); err != nil {
		return err
	}
	return persistent.CheckFilled()
}

// Unstage implements volume.NodeService. The staging directory belongs to the
// CO and stays.
func (n *Node) Unstage(ctx context.Context, id volume.ID, path string) error {
	if err := n.checkPath(path); err != nil {
		return err
	}
	known := n.get(id)
	if known == nil || known.Stage == nil || known.Stage.Path != path {
		if err := n.checkOwn(ctx, id, path); err != nil {
			return err
		}
		return n.unmountAll(ctx, path)
	}
	if err := n.checkUnpublished(ctx, known); err != nil {
		return err
	}
	n.cfg.Step.at("unstage:unmount")
	if err := n.unmountAll(ctx, path); err != nil {
		return err
	}
	if err := n.presenter(known).release(ctx, known); err != nil {
		return err
	}
	known.Stage = nil
	n.cfg.Step.at("unstage:record")
	if err := n.save(known); err != nil {
		return err
	}
	n.meter.forget(id)
	klog.FromContext(ctx).V(2).Info("Unstaged volume", logging.KeyVolumeID, id, logging.KeyStagingPath, path)
	return nil
}

// checkUnpublished drops the targets that do not exist any more; the volume must
// have no other target.
func (n *Node) checkUnpublished(ctx context.Context, known *volume.NodeVolume) error {
	living, err := n.dropDeadTargets(ctx, known)
	if err == nil && len(living) > 0 {
		err = fmt.Errorf("unstage volume %q: it is still published at %q: %w", known.ID, living[0], volume.ErrInUse)
	}
	return err
}
