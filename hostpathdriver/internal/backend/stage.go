package backend

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// Stage implements volume.NodeService: the volume's directory is bind mounted
// at the staging path; a block volume gets its device. The record is written first, so that the mount is
// known however the call ends.
func (n *Node) Stage(ctx context.Context, req *volume.StageRequest) error {
	readOnly, err := n.checkStage(req)
	if err != nil {
		return err
	}
	known := n.get(req.ID)
	if known == nil {
		known = &volume.NodeVolume{ID: req.ID}
	}
	before := known.Clone()
	stage := req.Stage
	stage.ReadOnly = readOnly
	known.Stage = &stage
	n.cfg.Step.at("stage:record")
	if err := n.save(known); err != nil {
		return errors.Join(err, n.save(before))
	}
	n.cfg.Step.at("stage:mount")
	if err := n.mountStage(ctx, req.ID, &stage); err != nil {
		return errors.Join(err, n.save(before))
	}
	klog.FromContext(ctx).V(2).Info("Staged volume", logging.KeyVolumeID, req.ID, logging.KeyStagingPath, stage.Path)
	return nil
}

func (n *Node) mountStage(ctx context.Context, id volume.ID, stage *volume.Stage) error {
	if stage.Capability.Access == volume.AccessBlock {
		return n.attach(ctx, id, stage)
	}
	return n.bind(ctx, n.persistentPath(id), stage.Path, stageOptions(stage))
}

// checkStage tells whether the volume may be staged, and whether it was attached
// read-only.
func (n *Node) checkStage(req *volume.StageRequest) (readOnly bool, err error) {
	if err := n.checkPath(req.Stage.Path); err != nil {
		return false, err
	}
	if err := n.Support().CheckCapability(req.Stage.Capability); err != nil {
		return false, err
	}
	persistent, err := n.lookupPersistent(req.ID)
	if err != nil {
		return false, err
	}
	if err := persistent.CheckAccess(req.Stage.Capability); err != nil {
		return false, err
	}
	if err := persistent.CheckReachable(n.cfg.NodeID); err != nil {
		return false, err
	}
	if !n.cfg.Attach {
		return false, nil
	}
	attached := persistent.PublishedOn(n.cfg.NodeID)
	if attached == nil {
		return false, fmt.Errorf("stage volume %q: it is not attached to node %q: %w", req.ID, n.cfg.NodeID, volume.ErrPrecondition)
	}
	return attached.ReadOnly, nil
}

// Unstage implements volume.NodeService. The staging directory belongs to the
// CO and stays.
func (n *Node) Unstage(ctx context.Context, id volume.ID, path string) error {
	if err := n.checkPath(path); err != nil {
		return err
	}
	known := n.get(id)
	if known == nil || known.Stage == nil || known.Stage.Path != path {
		return n.unmountAll(ctx, path)
	}
	if err := n.checkUnpublished(ctx, known); err != nil {
		return err
	}
	n.cfg.Step.at("unstage:unmount")
	if err := n.unmountAll(ctx, path); err != nil {
		return err
	}
	if err := n.releaseStage(ctx, known); err != nil {
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

// checkUnpublished drops the targets that are gone; the volume must have no
// other.
func (n *Node) checkUnpublished(ctx context.Context, known *volume.NodeVolume) error {
	living, err := n.dropDeadTargets(ctx, known)
	if err == nil && len(living) > 0 {
		err = fmt.Errorf("unstage volume %q: it is still published at %q: %w", known.ID, living[0], volume.ErrInUse)
	}
	return err
}
