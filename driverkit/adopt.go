package driverkit

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
)

// A volume may be staged although the journal does not know it: by the driver that this one has replaced, or because the state directory was lost. COs do not stage it again, so that it is found
// by what is mounted at its path.

// found returns what is at a path of a volume that the journal does not know, as far as the kernel knows it; nil if nothing is.
func (n *node) found(ctx context.Context, path string) (*stage, error) {
	s := &stage{Path: path, Boot: n.journal.boot}
	if isBlockDevice(path) {
		s.Capability.Block, s.Staged = true, &Staged{Device: path}
		var err error
		s.Device, err = identify(path)
		return s, err
	}
	mounted, err := n.Mounter.Mounted(ctx, path)
	if err != nil || !mounted {
		return nil, err
	}
	device, err := n.Filesystems.DeviceAt(ctx, path)
	s.Staged = &Staged{Device: device, Mounted: device == ""}
	return s, err
}

// stageOf returns the stage that a path of a volume belongs to: that of the journal, or what is found there; an ErrNotFound if there is none.
func (n *node) stageOf(ctx context.Context, known *record, path string) (*stage, error) {
	s := known.stageAt(path)
	if s == nil && known.Stage.showsDeviceAt(path) {
		s = known.Stage
	}
	if s == nil && known.Stage == nil && n.checkPath("volume_path", path) == nil {
		var err error
		if s, err = n.found(ctx, path); err != nil {
			return nil, err
		}
	}
	if s == nil || s.Staged == nil {
		return nil, fmt.Errorf("volume %q at volume_path %q: %w", known.ID, path, ErrNotFound)
	}
	return s, nil
}

// stageForPublish has a volume staged at the path that the CO names (CSI v1.13, "NodePublishVolume", FAILED_PRECONDITION, or NOT_FOUND). What is mounted there and not known is adopted, and a mount that has gone is
// made again: the kubelet stages a volume with a file system once, and does not look at it after that.
func (n *node) stageForPublish(ctx context.Context, known *record, want *target, req *StageRequest) (*record, error) {
	if known.Stage == nil {
		if err := n.checkExists(ctx, known.ID); err != nil {
			return nil, err
		}
	}
	if want.Staging == "" {
		hint := ""
		if n.driver.Inliner != nil {
			hint = "; an inline volume is recognized by its volume_context, which the kubelet sends if the CSIDriver has podInfoOnMount: true"
		}
		return nil, fmt.Errorf("staging_target_path: is required, volumes are staged before they are published%s: %w", hint, ErrPrecondition)
	}
	again := *req
	again.Path, again.ReadOnly = want.Staging, req.Capability.ReadOnly()
	if known.Stage == nil {
		return known, n.adopt(ctx, known, &again)
	}
	if known.Stage.Path != want.Staging {
		return nil, fmt.Errorf("volume %q is not staged at %q: %w", known.ID, want.Staging, ErrPrecondition)
	}
	staged, err := n.stillStaged(ctx, known.Stage)
	if err != nil || staged {
		return known, err
	}
	if known.Stage.Capability.Block { // The kubelet stages a raw block volume for each pod.
		return nil, fmt.Errorf("volume %q: the device of its stage at %q has gone; NodeStageVolume looks for it: %w", known.ID, want.Staging, ErrPrecondition)
	}
	klog.FromContext(ctx).Info("Staging a volume again whose mount or device has gone", logging.KeyVolumeID, known.ID, logging.KeyPath, want.Staging)
	s := known.Stage
	again.ReadOnly, again.VolumeContext, again.PublishContext = s.ReadOnly, s.VolumeContext, s.PublishContext
	err = n.stage(ctx, &again)
	return n.journal.get(known.ID), err
}

// checkExists returns an ErrNotFound for a volume that does not exist. Any other error does not count: a node may not be able to ask the storage system.
func (n *node) checkExists(ctx context.Context, id string) error {
	if n.driver.Provisioner == nil {
		return nil
	}
	if _, err := n.driver.Provisioner.Get(ctx, &GetRequest{ID: id}); isNotFound(err) {
		return err
	}
	return nil
}

// adopt takes over a volume that is mounted at its staging path, and that the journal does not know. Where that fails, everything stays as it is: pods may use it.
func (n *node) adopt(ctx context.Context, known *record, req *StageRequest) error {
	mounted, err := n.Mounter.Mounted(ctx, req.Path)
	if err == nil && !mounted {
		err = fmt.Errorf("volume %q is not staged at %q: %w", known.ID, req.Path, ErrPrecondition)
	}
	if err == nil {
		err = n.checkOwner(ctx, known.ID, req.Path)
	}
	if err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Adopting a volume that is mounted at its staging path, and that no record names", logging.KeyVolumeID, known.ID, logging.KeyPath, req.Path)
	before := known.clone()
	known.Stage = n.newStage(req)
	err = n.journal.save(known)
	if err == nil {
		err = n.present(ctx, req, known.Stage, func() error { return n.journal.save(known) })
	}
	if err == nil || errors.Is(err, ErrRunning) {
		return err
	}
	*known = *before
	return fmt.Errorf("adopt volume %q, which is mounted at %s: %w", known.ID, req.Path, errors.Join(err, n.journal.save(before)))
}

// findForUnstage notes what is mounted at the staging path of a volume that the journal does not know, before it is unmounted: the driver may need its device.
func (n *node) findForUnstage(ctx context.Context, known *record, path string) error {
	s, err := n.found(ctx, path)
	if s == nil || err != nil {
		known.Stage = &stage{Path: path}
		return err
	}
	known.Stage = s
	return n.journal.save(known)
}
