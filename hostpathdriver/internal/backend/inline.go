package backend

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// publishInline makes an inline volume and mounts it. known is nil, or what
// an earlier call left that did not come to its end.
func (n *Node) publishInline(ctx context.Context, known *volume.NodeVolume, req *volume.TargetRequest) error {
	attributes, err := volume.ParseInline(req.Inline.Attributes)
	if err != nil {
		return err
	}
	if req.Target.Capability.Access != volume.AccessMount {
		return fmt.Errorf("publish inline volume %q: access type %q: inline volumes are directories: %w", req.ID, req.Target.Capability.Access, volume.ErrInvalid)
	}
	made := known == nil
	if made {
		if known, err = n.reserveInline(req, attributes); err != nil {
			return err
		}
	}
	if known.TargetAt(req.Target.Path) == nil {
		known.Targets = append(known.Targets, req.Target)
	}
	err = n.fillInline(ctx, known, req, attributes)
	if err == nil {
		klog.FromContext(ctx).V(2).Info("Published inline volume", logging.KeyVolumeID, req.ID, logging.KeyTargetPath, req.Target.Path,
			logging.KeyPod, known.Ephemeral.Pod, logging.KeyCapacity, known.Ephemeral.Size)
		return nil
	}
	if made {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		known.Targets = nil
		err = errors.Join(err, n.deleteInline(undo, known))
	}
	return err
}

// reserveInline decides on a new inline volume and charges its pool.
func (n *Node) reserveInline(req *volume.TargetRequest, attributes volume.Attributes) (*volume.NodeVolume, error) {
	if n.persistent.Exists(string(req.ID)) {
		return nil, fmt.Errorf("publish inline volume %q: a persistent volume has this id: %w", req.ID, volume.ErrExists)
	}
	size := attributes.Size
	if size == 0 {
		size = min(volume.DefaultEphemeralSize, n.cfg.MaxSize)
	}
	if size > n.cfg.MaxSize {
		return nil, fmt.Errorf("publish inline volume %q: size %d exceeds the largest volume size %d: %w", req.ID, size, n.cfg.MaxSize, volume.ErrOutOfRange)
	}
	pool, err := n.cfg.Pools.Reserve(attributes.Pool, size)
	if err != nil {
		return nil, fmt.Errorf("publish inline volume %q: %w", req.ID, err)
	}
	return &volume.NodeVolume{
		ID: req.ID,
		Ephemeral: &volume.Ephemeral{
			Size: size, Pool: pool, Attributes: req.Inline.Attributes, Pod: req.Inline.Pod,
		},
	}, nil
}

// fillInline does everything on disk: record, directory, mount.
func (n *Node) fillInline(ctx context.Context, known *volume.NodeVolume, req *volume.TargetRequest, attributes volume.Attributes) error {
	n.cfg.Step.at("inline:record")
	if err := n.save(known); err != nil {
		return err
	}
	n.cfg.Step.at("inline:directory")
	if !n.directory.Exists(req.ID) {
		if err := n.directory.Create(req.ID, attributes); err != nil {
			return err
		}
	}
	n.cfg.Step.at("inline:mount")
	return n.bindTarget(ctx, n.directory.Path(req.ID), known.CannotWrite(&req.Target), &req.Target)
}

// deleteInline removes an inline volume whose targets are gone: contents,
// then record, then the charge.
func (n *Node) deleteInline(ctx context.Context, known *volume.NodeVolume) error {
	n.cfg.Step.at("inline:discard")
	if err := n.directory.Discard(ctx, known.ID); err != nil {
		return err
	}
	charged := *known.Ephemeral
	gone := &volume.NodeVolume{ID: known.ID}
	n.cfg.Step.at("inline:forget")
	if err := n.save(gone); err != nil {
		return err
	}
	n.cfg.Pools.Release(charged.Pool, charged.Size)
	n.meter.forget(known.ID)
	klog.FromContext(ctx).V(2).Info("Deleted inline volume", logging.KeyVolumeID, known.ID, logging.KeyPod, charged.Pod)
	n.cfg.Step.at("inline:purge")
	return n.directory.Purge(ctx, known.ID)
}
