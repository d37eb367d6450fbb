package backend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/driverkit/loop"
	"github.com/longshore-csi/longshore/driverkit/state"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// withUndoTimeout is the context in which a failed call is undone, whose own
// context may have ended.
func withUndoTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
}

// detachAll releases both devices of a volume.
func (n *Node) detachAll(ctx context.Context, known *volume.NodeVolume) error {
	return errors.Join(n.detach(ctx, known, true), n.detach(ctx, known, false), n.detachDeleted(ctx, known))
}

// detach releases a device. One that a program has open is an ErrInUse.
func (n *Node) detach(ctx context.Context, known *volume.NodeVolume, readOnly bool) error {
	return busyDevice(known.ID, n.cfg.Devices.Detach(ctx, n.disk(known), readOnly))
}

func busyDevice(id volume.ID, err error) error {
	if errors.Is(err, loop.ErrBusy) {
		return fmt.Errorf("volume %q: %w: %w", id, volume.ErrInUse, err)
	}
	return err
}

// detachDeleted releases the devices of a volume whose file was deleted while it
// was staged here: after a detachment by force nothing protects it.
func (n *Node) detachDeleted(ctx context.Context, known *volume.NodeVolume) error {
	if known.Stage == nil || !gone(n.disk(known)) {
		return nil
	}
	list, err := n.cfg.Devices.List(ctx)
	errs := []error{err}
	for _, shown := range list {
		if volume.FileID(shown.ID) == known.Stage.Disk && volumeOf(shown.File) == known.ID {
			errs = append(errs, busyDevice(known.ID, n.cfg.Devices.Release(ctx, shown, func() (bool, error) { return true, nil })))
		}
	}
	return errors.Join(errs...)
}

// volumeOf is the id in the path of a disk, with or without the directories
// above; empty when the path is that of something else.
func volumeOf(file string) volume.ID {
	dir, name := filepath.Split(file)
	parent, id := filepath.Split(filepath.Clean(dir))
	if kind := filepath.Base(parent); name != diskName || kind != volumesDir && kind != trashDir {
		return ""
	}
	parsed, err := volume.ParseID(id)
	if err != nil {
		return ""
	}
	return parsed
}

// sweepDevices releases devices of disks of this driver that no record of a node
// names, and that are not mounted. What cannot be released keeps no driver from
// starting.
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

// ownDisk is the path of a disk of this driver that a device shows; empty for any
// other file. The kernel reports the path of the mount namespace in which the file
// was opened, such as that of a container that has ended, or of another driver
// with the same path in its container: so the files themselves are compared.
func (n *Node) ownDisk(shown loop.Shown) string {
	id := volumeOf(shown.File)
	if id == "" {
		return ""
	}
	for _, root := range n.diskRoots() {
		if shown.Deleted {
			if within(shown.File, root) && onDisk(filepath.Dir(filepath.Dir(shown.File)), shown.ID.Dev) {
				return shown.File
			}
			continue
		}
		for _, dir := range []string{volumesDir, trashDir} {
			file := filepath.Join(root, dir, string(id), diskName)
			if same, err := loop.Identify(file); err == nil && same == shown.ID {
				return file
			}
		}
	}
	return ""
}

// diskRoots are the directories in which the drivers of this state directory keep
// disks: itself, those of nodes, and homes in pools. In the directory of a pool are
// disks of other drivers, too.
func (n *Node) diskRoots() []string {
	roots := []string{n.cfg.StateDir}
	nodes, _ := nodeNames(n.cfg.StateDir) // what is not known is not released
	for _, node := range nodes {
		roots = append(roots, nodeDir(n.cfg.StateDir, node))
	}
	for _, root := range slices.Clone(roots) {
		dir := filepath.Join(root, homesDir)
		records := state.View[home](dir, homeKind)
		entries, _ := os.ReadDir(dir) // the same
		for _, entry := range entries {
			if found, err := records.Get(strings.TrimSuffix(entry.Name(), ".json")); err == nil {
				roots = append(roots, found.path())
			}
		}
	}
	return roots
}

// onDisk reports whether a directory is on the disk of that number.
func onDisk(dir string, number uint64) bool {
	var about unix.Stat_t
	return unix.Stat(dir, &about) == nil && about.Dev == number
}

// orphaned reports whether no node has a record of the volume, and nothing is
// mounted of the device.
func (n *Node) orphaned(ctx context.Context, shown loop.Shown) (bool, error) {
	nodes, err := nodeNames(n.cfg.StateDir)
	if err != nil {
		return false, err
	}
	id := string(volumeOf(shown.File))
	for _, node := range nodes {
		if records := viewNode(n.cfg.StateDir, node); records.Exists(id) || records.Quarantined(id) {
			return false, nil
		}
	}
	used, err := n.cfg.Mounter.Uses(ctx, shown.Device)
	return !used, err
}

// viewNode are the records of a node, to read.
func viewNode(stateDir, node string) *state.Records[volume.NodeVolume] {
	return state.View[volume.NodeVolume](filepath.Join(nodeDir(stateDir, node), recordsDir), nodeVolumeKind)
}

// nodeNames returns the node roles that ever ran in a state directory.
func nodeNames(stateDir string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(stateDir, nodesDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names, nil
}
