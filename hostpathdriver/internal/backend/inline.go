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
		return fmt.Errorf("publish inline volume %q: access type %q: inline volumes are mounted: %w", req.ID, req.Target.Capability.Access, volume.ErrInvalid)
	}
	made := known == nil
	if made {
		if known, err = n.reserveInline(ctx, req, attributes); err != nil {
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
		undo, cancel := withUndoTimeout(ctx)
		defer cancel()
		known.Targets = nil
		err = errors.Join(err, n.deleteInline(undo, known))
	}
	return err
}

// planInline decides on form and size of a new inline volume.
func (n *Node) planInline(req *volume.TargetRequest, attributes volume.Attributes) (form volume.Form, size int64, err error) {
	capabilities := []volume.Capability{req.Target.Capability}
	if form, err = n.Support().ChooseForm(attributes, capabilities, nil); err != nil {
		return form, 0, err
	}
	if err := n.Support().CheckCapabilities(form, capabilities); err != nil {
		return form, 0, err
	}
	if err := n.checkFSType(form.FSType); err != nil {
		return form, 0, err
	}
	size = attributes.Size
	if size == 0 {
		size = min(volume.DefaultEphemeralSize, n.cfg.MaxSize)
	}
	size, err = n.Support().Size(form, volume.Range{Required: size}, n.cfg.MaxSize)
	return form, size, err
}

// reserveInline decides on a new inline volume and charges its pool.
func (n *Node) reserveInline(ctx context.Context, req *volume.TargetRequest, attributes volume.Attributes) (*volume.NodeVolume, error) {
	if n.persistent.Exists(string(req.ID)) {
		return nil, fmt.Errorf("publish inline volume %q: a persistent volume has this id: %w", req.ID, volume.ErrExists)
	}
	form, size, err := n.planInline(req, attributes)
	if err != nil {
		return nil, fmt.Errorf("publish inline volume %q: %w", req.ID, err)
	}
	pool, err := n.cfg.Pools.Reserve(attributes.Pool, size)
	if err != nil {
		return nil, fmt.Errorf("publish inline volume %q: %w", req.ID, err)
	}
	home, err := n.homes.of(ctx, pool)
	if err != nil {
		n.cfg.Pools.Release(pool, size)
		return nil, fmt.Errorf("publish inline volume %q: %w", req.ID, err)
	}
	return &volume.NodeVolume{
		ID: req.ID, Home: home,
		Ephemeral: &volume.Ephemeral{
			Size: size, Pool: pool, FSType: form.FSType, Attributes: req.Inline.Attributes, Pod: req.Inline.Pod,
		},
	}, nil
}

// fillInline does everything on disk: record, contents, mount.
func (n *Node) fillInline(ctx context.Context, known *volume.NodeVolume, req *volume.TargetRequest, attributes volume.Attributes) error {
	n.cfg.Step.at("inline:record")
	if err := n.save(known); err != nil {
		return err
	}
	n.cfg.Step.at("inline:contents")
	if contents := n.contents(known); gone(contents.Place(req.ID, known.Form())) {
		if err := contents.Create(req.ID, known.Form(), known.Ephemeral.Size, attributes); err != nil {
			return err
		}
	}
	n.cfg.Step.at("inline:mount")
	return n.cleanupTarget(&req.Target, n.presenter(known).publish(ctx, known, &req.Target))
}

// deleteInline removes an inline volume whose targets are gone: device,
// contents, then record, then the charge.
func (n *Node) deleteInline(ctx context.Context, known *volume.NodeVolume) error {
	if err := n.presenter(known).retire(ctx, known); err != nil {
		return err
	}
	n.cfg.Step.at("inline:discard")
	contents := n.contents(known)
	if err := contents.Discard(ctx, known.ID); err != nil {
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
	return contents.Purge(ctx, known.ID)
}
