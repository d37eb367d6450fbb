package backend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// Publish implements volume.NodeService: a bind mount of the staging path, or
// of a new inline volume, at the target. The record is written first.
func (n *Node) Publish(ctx context.Context, req *volume.TargetRequest) error {
	if err := n.checkPath(req.Target.Path); err != nil {
		return err
	}
	if err := n.Support().CheckCapability(req.Target.Capability); err != nil {
		return err
	}
	known := n.get(req.ID)
	if req.Inline != nil {
		return n.publishInline(ctx, known, req)
	}
	if err := n.checkStaged(ctx, known, req); err != nil {
		return err
	}
	before := known.Clone()
	if known.TargetAt(req.Target.Path) == nil {
		known.Targets = append(known.Targets, req.Target)
	}
	n.cfg.Step.at("target:record")
	if err := n.save(known); err != nil {
		return errors.Join(err, n.save(before))
	}
	n.cfg.Step.at("target:mount")
	if err := n.bindTarget(ctx, req.Target.Source, &req.Target); err != nil {
		return errors.Join(err, n.save(before))
	}
	klog.FromContext(ctx).V(2).Info("Published volume", logging.KeyVolumeID, req.ID, logging.KeyTargetPath, req.Target.Path)
	return nil
}

func (n *Node) checkStaged(ctx context.Context, known *volume.NodeVolume, req *volume.TargetRequest) error {
	if known == nil || known.Stage == nil {
		if _, err := n.lookupPersistent(req.ID); err != nil {
			return err
		}
		return fmt.Errorf("publish volume %q: it is not staged: %w", req.ID, volume.ErrPrecondition)
	}
	if known.Stage.Path != req.Target.Source {
		return fmt.Errorf("publish volume %q: it is staged at %q, not at %q: %w", req.ID, known.Stage.Path, req.Target.Source, volume.ErrPrecondition)
	}
	mounted, err := n.cfg.Mounter.Mounted(ctx, known.Stage.Path)
	if err == nil && !mounted {
		err = fmt.Errorf("publish volume %q: nothing is mounted at its staging path %q: %w", req.ID, known.Stage.Path, volume.ErrPrecondition)
	}
	return err
}

// bindTarget mounts source at the target. After an error the target is gone,
// unless something else is mounted there.
func (n *Node) bindTarget(ctx context.Context, source string, target *volume.Target) error {
	err := n.bind(ctx, source, target.Path, targetOptions(target))
	if err == nil || errors.Is(err, volume.ErrPrecondition) {
		return err
	}
	return errors.Join(err, removeDir(target.Path))
}

// Unpublish implements volume.NodeService. An inline volume goes with its
// last target.
func (n *Node) Unpublish(ctx context.Context, id volume.ID, path string) error {
	if err := n.checkPath(path); err != nil {
		return err
	}
	n.cfg.Step.at("untarget:unmount")
	if err := n.unmountAll(ctx, path); err != nil {
		return err
	}
	n.cfg.Step.at("untarget:remove")
	if err := removeDir(path); err != nil {
		return err
	}
	known := n.get(id)
	if known == nil {
		return n.directory.Purge(ctx, id)
	}
	known.Targets = slices.DeleteFunc(known.Targets, func(t volume.Target) bool { return t.Path == path })
	if known.Ephemeral != nil && len(known.Targets) == 0 {
		return n.deleteInline(ctx, known)
	}
	n.cfg.Step.at("untarget:record")
	if err := n.save(known); err != nil {
		return err
	}
	klog.FromContext(ctx).V(2).Info("Unpublished volume", logging.KeyVolumeID, id, logging.KeyTargetPath, path)
	return nil
}

// removeDir removes an empty directory. It can never follow into a volume:
// a mount point or a directory with contents is an error.
func removeDir(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove target path: %w", err)
	}
	return nil
}
