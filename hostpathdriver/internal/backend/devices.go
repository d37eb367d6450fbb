package backend

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/contents"
	"github.com/longshore-csi/longshore/hostpathdriver/loop"
)

// detach releases both devices of a volume. A device that a program has open is an ErrInUse.
func (n *Node) detach(ctx context.Context, u *use) error {
	file := n.disk(u)
	return errors.Join(
		busy(u.ID, n.cfg.Devices.Detach(ctx, file, true)),
		busy(u.ID, n.cfg.Devices.Detach(ctx, file, false)),
		n.detachDeleted(ctx, u),
	)
}

func busy(id string, err error) error {
	if errors.Is(err, loop.ErrBusy) {
		return fmt.Errorf("volume %q: %w: %w", id, driverkit.ErrInUse, err)
	}
	return err
}

// detachDeleted releases the devices of a volume whose file was deleted while it was staged here: after a detachment by force nothing protects it.
func (n *Node) detachDeleted(ctx context.Context, u *use) error {
	if u.Disk == (loop.Identity{}) || !gone(n.disk(u)) {
		return nil
	}
	list, err := n.cfg.Devices.List(ctx)
	errs := []error{err}
	for _, shown := range list {
		if shown.ID == u.Disk && contents.OwnerOf(shown.File) == u.ID {
			errs = append(errs, busy(u.ID, n.cfg.Devices.Release(ctx, shown, func() (bool, error) { return true, nil })))
		}
	}
	return errors.Join(errs...)
}

// sweepDevices releases devices of disks of this driver that no record of a node names, and that are not mounted. A device that cannot be released keeps no
// driver from starting.
func (n *Node) sweepDevices(ctx context.Context) {
	logger := klog.FromContext(ctx)
	list, err := n.cfg.Devices.List(ctx)
	if err != nil {
		logger.Info("Skipped the search for devices without a record", logging.KeyReason, err.Error())
		return
	}
	for _, shown := range list {
		shown.File = n.ownDisk(shown)
		if shown.File == "" {
			continue
		}
		released := false
		timed, cancel := withUndoTimeout(ctx)
		err := n.cfg.Devices.Release(timed, shown, func() (bool, error) {
			var err error
			released, err = n.orphaned(timed, shown)
			return released, err
		})
		cancel()
		switch {
		case err != nil:
			logger.Error(err, "Could not release a device without a record; the next start tries again", logging.KeyPath, shown.File)
		case released:
			logger.Info("Released a device without a record", logging.KeyPath, shown.File)
		}
	}
}

// ownDisk is the path of a disk of this driver that a device shows; empty for any other file. The kernel reports the path of the mount namespace in which the
// file was opened, such as that of a container that has ended, or of another driver with the same path in its container: so the files are compared.
func (n *Node) ownDisk(shown loop.Shown) string {
	id := contents.OwnerOf(shown.File)
	if id == "" {
		return ""
	}
	roots := n.cfg.roots(n.cfg.StateDir)
	nodes, _ := n.cfg.nodes() // What is not known is not released.
	for _, node := range nodes {
		roots = append(roots, NodeDir(n.cfg.StateDir, node))
	}
	for _, root := range roots {
		if shown.Deleted {
			if strings.HasPrefix(shown.File, root+"/") && onDisk(filepath.Dir(filepath.Dir(shown.File)), shown.ID.Dev) {
				return shown.File
			}
			continue
		}
		for _, file := range contents.DisksOf(root, id) {
			if same, err := loop.Identify(file); err == nil && same == shown.ID {
				return file
			}
		}
	}
	return ""
}

// onDisk reports whether a directory is on the disk of that number.
func onDisk(dir string, number uint64) bool {
	var about unix.Stat_t
	return unix.Stat(dir, &about) == nil && about.Dev == number
}

// orphaned reports whether no node has a record of the volume, and nothing is mounted of the device.
func (n *Node) orphaned(ctx context.Context, shown loop.Shown) (bool, error) {
	nodes, err := n.cfg.nodes()
	if err != nil {
		return false, err
	}
	id := contents.OwnerOf(shown.File)
	for _, node := range nodes {
		if n.cfg.hasUse(node, id) {
			return false, nil
		}
	}
	used, err := n.cfg.Mounter.Uses(ctx, shown.Device)
	return !used, err
}
