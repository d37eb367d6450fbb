// Package backend is the hostpath driver as the parts of a driverkit.Driver: volumes and snapshots are directories and files of a machine. Controller is the part that
// makes them, Node the part that makes them available on a node; a process has one of both, or both.
//
// Layout of the state directory, beside the contents (see package contents):
//
//	controller.lock                    held by the one process that writes as controller
//	controller.sock                    where that process serves the others
//	records/<id>.json                  volume.Volume
//	snapshot-records/<id>.json         volume.Snapshot
//	group-records/<id>.json            volume.Group
//	nodes/<node>/                      the journal of driverkit
//	nodes/<node>/uses/<id>.json        use: a volume that is staged, or that is an inline volume of the node
//	nodes/<node>/volumes/<id>/         contents of an inline volume
//	nodes/<node>/prepare/<id>/         where the file system of a volume is mounted to prepare it
//
// The contents of pools with a directory are below that directory.
//
// An object exists when its record exists. Its contents are complete before, and are moved to the trash before the record is deleted, so that a crash leaves
// at most contents that nobody has used, incomplete copies, or some in the trash; all of them are removed at start. What has data and no record is never removed, only reported.
package backend

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/driverkit/state"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/contents"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
	"github.com/longshore-csi/longshore/hostpathdriver/loop"
)

const (
	volumeKind   = "volume"
	snapshotKind = "snapshot"
	groupKind    = "group"
	useKind      = "use"

	recordsDir         = "records"
	snapshotRecordsDir = "snapshot-records"
	groupRecordsDir    = "group-records"
	nodesDir           = "nodes"
	usesDir            = "uses"
	prepareDir         = "prepare"
)

// undoTimeout bounds the undoing of a failed call, whose own context may have ended.
const undoTimeout = 10 * time.Second

// Step is called before each change on disk with the name of the change. Tests use it to crash there. A nil Step does nothing.
type Step func(name string)

func (s Step) at(name string) {
	if s != nil {
		s(name)
	}
}

// Config is what controller and node have in common.
type Config struct {
	// StateDir has records and contents. Controllers and nodes may share it.
	StateDir string
	// PoolDirs are the directories of pools that have one, for their contents.
	PoolDirs map[string]string
	// Pools account for space.
	Pools *volume.Pools
	// MaxSize is the size in bytes of the largest volume.
	MaxSize int64
	// MaxInlineSize is the size in bytes of the largest inline volume, where that is less; zero is that of MaxSize.
	MaxInlineSize int64
	// InlinePools are the pools of inline volumes, the first of them for those that name none; none means all pools.
	InlinePools []string
	// NodeID is the node of this process; empty for a controller alone.
	NodeID string
	// Attach says that volumes are attached before use.
	Attach bool
	// Mounter makes bind mounts, and reads the mount table.
	Mounter mount.Mounter
	// Devices makes the devices of disks.
	Devices loop.Devices
	// Filesystems makes and mounts the file systems of images.
	Filesystems filesystem.Filesystems
	// Patience is how long a call waits until the contents that it has deleted are gone; then they are removed in the background. Default: 2 seconds.
	Patience time.Duration
	// Step is for crash tests.
	Step Step
}

// NodeDir is the directory of a node below a state directory.
func NodeDir(stateDir, node string) string { return filepath.Join(stateDir, nodesDir, node) }

// root is the directory below which new contents of a pool are kept: the Root of their records, empty for the state directory.
func (c *Config) root(pool string) string { return c.PoolDirs[pool] }

// roots are all directories with contents: the given one, and those of the pools.
func (c *Config) roots(first string) []string {
	roots := slices.AppendSeq([]string{first}, maps.Values(c.PoolDirs))
	slices.Sort(roots)
	return slices.Compact(roots)
}

// poolNodes are the directories with inline volumes of this node in pools.
func (c *Config) poolNodes() []string {
	var dirs []string
	for _, dir := range c.roots(c.StateDir) {
		if dir = NodeDir(dir, c.NodeID); dir != NodeDir(c.StateDir, c.NodeID) && !gone(dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// contentsOf are the contents of a volume.
func (c *Config) contentsOf(v *volume.Volume) *contents.Store {
	return contents.At(cmp.Or(v.Root, c.StateDir), contents.Volumes, c.Mounter)
}

// uses are the records of a node, to read.
func (c *Config) uses(node string) *state.Records[use] {
	return state.View[use](filepath.Join(NodeDir(c.StateDir, node), usesDir), useKind)
}

// nodes returns the nodes that ever ran in the state directory.
func (c *Config) nodes() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(c.StateDir, nodesDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names, nil
}

// usedOn returns the nodes on which a volume is staged. One whose record cannot be read may have it staged, so that it counts.
func (c *Config) usedOn(id string) ([]string, error) {
	nodes, err := c.nodes()
	return slices.DeleteFunc(nodes, func(node string) bool { return !c.hasUse(node, id) }), err
}

// hasUse reports whether a node has a record of a volume, also one that cannot be read.
func (c *Config) hasUse(node, id string) bool {
	uses := c.uses(node)
	return uses.Exists(id) || uses.Quarantined(id)
}

// recoverContents removes what a crash left of contents of a kind, and reports the rest.
func (c *Config) recoverContents(ctx context.Context, root, kind string, known func(id string) bool) error {
	logger := klog.FromContext(ctx)
	left, err := contents.At(root, kind, c.Mounter).Recover(known)
	for _, path := range slices.Concat(left.Removed, left.Discarded) {
		logger.Info("Removed what an interrupted operation left", logging.KeyPath, path)
	}
	for _, path := range left.Kept {
		logger.Info("Kept a directory with contents that no record names; remove it by hand if it is not needed", logging.KeyPath, path)
	}
	return err
}

func reportDamaged(ctx context.Context, damaged []state.Damaged) {
	for _, d := range damaged {
		klog.FromContext(ctx).Error(d.Err, "Moved an unreadable record aside; its volume is unknown until the file is repaired and moved back",
			logging.KeyVolumeID, d.ID, logging.KeyPath, d.Path)
	}
}

// withUndoTimeout is the context in which a failed call is undone.
func withUndoTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
}

// closeAll ends what is done in the background, and waits for that for a while: a program that works on a device is not cut short.
func closeAll(all ...*driverkit.Background) {
	ctx, cancel := withUndoTimeout(context.Background())
	defer cancel()
	for _, b := range all {
		if b == nil { // what was not opened
			continue
		}
		if err := b.Close(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Stopping while work goes on, which the next start finds unfinished")
		}
	}
}

// undone returns the error of a creation that was undone, perhaps with an error: without one nothing of it is left, so that it is final.
func undone(err, undo error) error {
	if undo != nil {
		return exhausted(errors.Join(err, undo))
	}
	return exhausted(driverkit.Final(err))
}

// exhausted says in the terms of CSI that a disk is full.
func exhausted(err error) error {
	if state.IsFull(err) {
		return fmt.Errorf("%w: %w", driverkit.ErrExhausted, err)
	}
	return err
}

// gone reports whether a path does not exist for sure: where looking fails, something may be there.
func gone(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// newID returns a random id in the form of a UUID, version 4.
func newID() string {
	var b [16]byte
	rand.Read(b[:]) // It is documented never to fail.
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	s := hex.EncodeToString(b[:])
	return s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}
