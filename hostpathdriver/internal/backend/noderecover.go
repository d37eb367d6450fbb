package backend

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// recover reads the records, forgets mounts that are gone, and deletes inline
// volumes whose pod is gone.
func (n *Node) recover(ctx context.Context) error {
	loaded, damaged, err := n.records.Load()
	if err != nil {
		return err
	}
	reportDamaged(ctx, damaged)
	for _, id := range slices.Sorted(maps.Keys(loaded)) {
		known := loaded[id]
		n.volumes[known.ID] = &known
		if err := n.adopt(ctx, known.Clone()); err != nil {
			return err
		}
	}
	for _, contents := range n.homes.everywhere(volumesDir) {
		left, err := contents.Recover(ctx, func(id volume.ID) bool {
			return n.records.Exists(string(id)) || n.records.Quarantined(string(id))
		})
		if err != nil {
			return err
		}
		reportLeftovers(ctx, left)
	}
	n.sweepDevices(ctx)
	n.reconcileAll(ctx)
	klog.FromContext(ctx).Info("Loaded mounts", logging.KeyCount, len(n.volumes), logging.KeyNodeID, n.cfg.NodeID)
	return nil
}

// reconcileAll completes what the process before has not done to staged disks. A
// failure does not prevent the start.
func (n *Node) reconcileAll(ctx context.Context) {
	for _, known := range n.stagedDisks() {
		if err := withinUndoTimeout(ctx, known, n.completeStage); err != nil {
			klog.FromContext(ctx).Error(err, "Could not apply changes to a staged volume", logging.KeyVolumeID, known.ID)
		}
	}
}

// completeStage expands the file system of a volume that is not published, as the
// process may have ended in Stage, after the mount: a repeated Stage finds the mount.
func (n *Node) completeStage(ctx context.Context, known *volume.NodeVolume) error {
	if len(known.Targets) == 0 {
		if err := n.grow(ctx, known); err != nil {
			return err
		}
	}
	return n.Reconcile(ctx, known.ID)
}

// adopt takes one record over. It writes only when something has changed.
func (n *Node) adopt(ctx context.Context, known *volume.NodeVolume) error {
	if known.Ephemeral != nil {
		return n.adoptInline(ctx, known)
	}
	logger := klog.FromContext(ctx).WithValues(logging.KeyVolumeID, known.ID)
	changed := known.Unused()
	before := len(known.Targets)
	living, err := n.dropDeadTargets(ctx, known)
	if err != nil {
		return err
	}
	if gone := before - len(known.Targets); gone > 0 {
		logger.Info("Forgot published mounts that are gone", logging.KeyCount, gone)
		changed = true
	}
	if known.Stage != nil && len(living) == 0 {
		forgotten, err := n.forgetStage(ctx, known)
		if err != nil {
			return err
		}
		changed = changed || forgotten
	}
	if !changed {
		return nil
	}
	return n.save(known)
}

// forgetStage removes the stage from the record if device or mount are gone. An
// existing mount stays for NodeUnstageVolume.
func (n *Node) forgetStage(ctx context.Context, known *volume.NodeVolume) (forgotten bool, err error) {
	there, err := n.presenter(known).stillStaged(ctx, known)
	if err != nil || there {
		return false, err
	}
	logger := klog.FromContext(ctx).WithValues(logging.KeyVolumeID, known.ID, logging.KeyStagingPath, known.Stage.Path)
	if gone(n.contents(known).Place(known.ID, known.Form())) {
		mounted, err := n.cfg.Mounter.Mounted(ctx, known.Stage.Path)
		if err != nil || mounted {
			return false, err
		}
	}
	logger.Info("Forgot what was staged and is gone")
	if err := withinUndoTimeout(ctx, known, n.presenter(known).release); err != nil {
		logger.Error(err, "Could not detach a device that is not mounted any more")
	}
	known.Stage = nil
	return true, nil
}

// withinUndoTimeout bounds a change of a device at a start. A device that another
// process has open must not delay the start: it is detached when that process closes it.
func withinUndoTimeout(ctx context.Context, known *volume.NodeVolume, change func(context.Context, *volume.NodeVolume) error) error {
	ctx, cancel := context.WithTimeout(ctx, undoTimeout)
	defer cancel()
	return change(ctx, known)
}

// adoptInline keeps an inline volume as long as a target is there. A target
// without a mount is a machine that was restarted: the pod comes back and
// finds its data. Where the directory of a target is missing, too, that of the
// kubelet may not be mounted yet, and the volume stays for NodeUnpublishVolume. A
// failed deletion does not prevent the start.
func (n *Node) adoptInline(ctx context.Context, known *volume.NodeVolume) error {
	n.cfg.Pools.Adopt(known.Ephemeral.Pool, known.Ephemeral.Size)
	before := len(known.Targets)
	known.Targets = slices.DeleteFunc(known.Targets, func(t volume.Target) bool { return targetGone(t.Path) })
	switch len(known.Targets) {
	case 0:
		logger := klog.FromContext(ctx).WithValues(logging.KeyVolumeID, known.ID, logging.KeyPod, known.Ephemeral.Pod)
		logger.Info("Deleting an inline volume whose target is gone")
		err := withinUndoTimeout(ctx, known, n.presenter(known).retire)
		if err == nil {
			err = n.deleteInline(ctx, known)
		}
		if ctx.Err() != nil {
			return err
		}
		if err != nil {
			logger.Error(err, "Could not delete an inline volume whose target is gone; the next start tries again")
		}
		return nil
	case before:
		return nil
	}
	return n.save(known)
}

// targetGone reports whether a target was removed from its directory, which is
// there.
func targetGone(path string) bool {
	info, err := os.Stat(filepath.Dir(path))
	return err == nil && info.IsDir() && gone(path)
}

// gone reports whether a path does not exist for sure: where looking fails,
// something may be there.
func gone(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}
