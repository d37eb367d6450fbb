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

// Publish implements volume.NodeService: it mounts a staged volume, or a new inline
// volume, at the target. The record is written first.
func (n *Node) Publish(ctx context.Context, req *volume.TargetRequest) error {
	if err := n.checkPath(req.Target.Path); err != nil {
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
	if known.Device() {
		if err := (devicePresenter{n}).dropStale(ctx, known, &req.Target); err != nil {
			return err
		}
	}
	if known.TargetAt(req.Target.Path) == nil {
		known.Targets = append(known.Targets, req.Target)
	}
	n.cfg.Step.at("target:record")
	if err := n.save(known); err != nil {
		return errors.Join(err, n.save(before))
	}
	if err := n.checkSingleWriter(known); err != nil {
		return errors.Join(err, n.save(before))
	}
	n.cfg.Step.at("target:mount")
	if err := n.cleanupTarget(&req.Target, n.presenter(known).publish(ctx, known, &req.Target)); err != nil {
		return errors.Join(err, n.save(before))
	}
	klog.FromContext(ctx).V(2).Info("Published volume", logging.KeyVolumeID, req.ID, logging.KeyTargetPath, req.Target.Path)
	return nil
}

// checkSingleWriter refuses a second node that writes with
// MULTI_NODE_SINGLE_WRITER, where the state directory is that of several nodes and
// no controller attaches volumes. The record of this node is on disk by now: of two
// nodes that publish at once at least one sees the other.
func (n *Node) checkSingleWriter(known *volume.NodeVolume) error {
	if n.cfg.Attach || !known.WritesAlone() {
		return nil
	}
	nodes, err := nodeNames(n.cfg.StateDir)
	if err != nil {
		return err
	}
	for _, node := range nodes {
		if node == n.cfg.NodeID {
			continue
		}
		other, err := viewNode(n.cfg.StateDir, node).Get(string(known.ID))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return err
		case other.WritesAlone():
			return fmt.Errorf("publish volume %q: node %q writes to it, and access mode %s allows one node to write: %w",
				known.ID, node, volume.MultiNodeSingleWriter, volume.ErrInUse)
		}
	}
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
	if known.Stage.Capability.Access != req.Target.Capability.Access {
		return fmt.Errorf("publish volume %q: access type %q, but it is staged with %q: %w",
			req.ID, req.Target.Capability.Access, known.Stage.Capability.Access, volume.ErrInvalid)
	}
	if err := n.Support().CheckCapability(known.Form(), req.Target.Capability); err != nil {
		return err
	}
	ready, err := n.presenter(known).stillStaged(ctx, known)
	if err == nil && !ready {
		err = fmt.Errorf("publish volume %q: what was staged at %q is gone, it has to be staged again: %w", req.ID, known.Stage.Path, volume.ErrPrecondition)
	}
	if err == nil {
		err = n.checkWritable(ctx, known, known.Stage.Path)
	}
	return err
}

// cleanupTarget removes the target after an error of mounting, unless something else
// is mounted there, and returns the error.
func (n *Node) cleanupTarget(target *volume.Target, err error) error {
	if err == nil || errors.Is(err, volume.ErrPrecondition) {
		return err
	}
	return errors.Join(err, removeMountPoint(target.Path))
}

// Unpublish implements volume.NodeService. An inline volume is deleted with its last
// target.
func (n *Node) Unpublish(ctx context.Context, id volume.ID, path string) error {
	if err := n.checkPath(path); err != nil {
		return err
	}
	known := n.get(id)
	if known == nil || known.TargetAt(path) == nil {
		if err := n.checkOwn(ctx, id, path); err != nil {
			return err
		}
	}
	n.cfg.Step.at("untarget:unmount")
	if err := n.unmountAll(ctx, path); err != nil {
		return err
	}
	n.cfg.Step.at("untarget:remove")
	if err := removeMountPoint(path); err != nil {
		return err
	}
	if known == nil {
		return n.homes.purge(ctx, volumesDir, id)
	}
	form := n.presenter(known)
	known.Targets = slices.DeleteFunc(known.Targets, func(t volume.Target) bool { return t.Path == path })
	if err := form.retire(ctx, known); err != nil {
		return err
	}
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

// removeMountPoint removes an empty file or an empty directory, and nothing
// else, whatever the path. It never removes files of a volume: a mount point, or a
// file or directory with contents, is an error.
func removeMountPoint(path string) error {
	info, err := os.Lstat(path)
	if err == nil && !info.IsDir() && (!info.Mode().IsRegular() || info.Size() > 0) {
		return fmt.Errorf("remove target path %q: it is neither an empty file nor an empty directory: %w", path, volume.ErrPrecondition)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove target path: %w", err)
	}
	return nil
}
