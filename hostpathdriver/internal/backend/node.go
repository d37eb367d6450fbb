package backend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/loop"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/driverkit/state"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/quota"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// undoTimeout bounds the work of undoing a failed call, which must happen
// although the call's own context may be over.
const undoTimeout = 10 * time.Second

// NodeConfig configures the node side.
type NodeConfig struct {
	// StateDir is the state directory, shared with the controller role.
	StateDir string
	// PoolDirs are the directories of pools that have one.
	PoolDirs map[string]string
	// NodeID names this node.
	NodeID string
	// Pools account for the space of inline volumes.
	Pools *volume.Pools
	// MaxSize is the largest inline volume in bytes.
	MaxSize int64
	// MaxExpandSize is the largest size in bytes that a volume may have when
	// it is expanded on this node; zero is no limit.
	MaxExpandSize int64
	// ExpandVolume is the controller's side of an expansion, where the CO asks the
	// node alone for it; nil where the CO asks the controller first.
	ExpandVolume func(ctx context.Context, req *volume.ExpandRequest) (*volume.Volume, error)
	// ExpandOnReconcile is true where the CO never calls Expand: Reconcile then
	// expands devices and file systems in use.
	ExpandOnReconcile bool
	// Attach is true when a volume must be attached before it is staged.
	Attach bool
	// Mounter makes the mounts.
	Mounter mount.Mounter
	// Quotas limit inline volumes to their size, and measure directories; nil is the
	// kernel.
	Quotas quota.Quotas
	// Devices makes the devices of disks.
	Devices loop.Devices
	// Filesystems makes and mounts the file systems on devices of images.
	Filesystems filesystem.Filesystems
	// Step is for crash tests.
	Step Step
}

// Node is the node side: mounts of persistent volumes, and inline volumes.
type Node struct {
	cfg NodeConfig
	// homes are those of inline volumes. The contents of persistent ones are the
	// controller's, which makes and removes them.
	homes   *homes
	records *state.Records[volume.NodeVolume]
	// persistent are the controller's records, which are only read.
	persistent *state.Records[volume.Volume]
	meter      meter

	mu      sync.RWMutex
	volumes map[volume.ID]*volume.NodeVolume
	// applied are the settings of staged disks, as this process has applied them.
	applied map[volume.ID]settings
}

var _ volume.NodeService = (*Node)(nil)

// OpenNode reads the records of a node and brings them in line with the mount
// table. The caller holds the lock of the node role.
func OpenNode(ctx context.Context, cfg NodeConfig) (*Node, error) {
	if err := volume.CheckNodeID(cfg.NodeID); err != nil {
		return nil, err
	}
	if cfg.Quotas == nil {
		cfg.Quotas = quota.New()
	}
	root := nodeDir(cfg.StateDir, cfg.NodeID)
	found, err := openHomes(ctx, &homes{
		root: root, names: []string{volumesDir}, mounter: cfg.Mounter, quotas: cfg.Quotas, pools: cfg.PoolDirs, step: cfg.Step,
	})
	if err != nil {
		return nil, err
	}
	records, err := state.Open[volume.NodeVolume](filepath.Join(root, recordsDir), nodeVolumeKind)
	if err != nil {
		return nil, err
	}
	n := &Node{
		cfg:        cfg,
		homes:      found,
		records:    records,
		persistent: state.View[volume.Volume](filepath.Join(cfg.StateDir, recordsDir), volumeKind),
		volumes:    map[volume.ID]*volume.NodeVolume{},
		applied:    map[volume.ID]settings{},
	}
	if err := n.recover(ctx); err != nil {
		return nil, fmt.Errorf("recover mounts of node %q in %s: %w", cfg.NodeID, cfg.StateDir, err)
	}
	return n, nil
}

// Support implements volume.NodeService.
func (n *Node) Support() volume.Support { return support() }

// checkFSType reports whether the node can handle a file system. If not, the
// error is an ErrPrecondition.
func (n *Node) checkFSType(fsType string) error {
	if fsType == "" {
		return nil
	}
	types := n.cfg.Filesystems.Types()
	if slices.Contains(types, fsType) {
		return nil
	}
	return fmt.Errorf("file system type %q: node %q has the programs for %v only; install those of %s: %w",
		fsType, n.cfg.NodeID, types, fsType, volume.ErrPrecondition)
}

// Lookup implements volume.NodeService.
func (n *Node) Lookup(_ context.Context, id volume.ID) (*volume.NodeVolume, error) {
	if known := n.get(id); known != nil {
		return known, nil
	}
	return nil, fmt.Errorf("volume %q on node %q: %w", id, n.cfg.NodeID, volume.ErrNotFound)
}

// MountMatches implements volume.NodeService. It is false for a file system that became
// read-only, as the kernel makes it after an I/O error.
func (n *Node) MountMatches(ctx context.Context, known *volume.NodeVolume, path string) (bool, error) {
	there, err := n.mounted(ctx, known, path)
	if err != nil || !there {
		return false, err
	}
	broken, err := n.becameReadOnly(ctx, known, path)
	return !broken, err
}

// mounted reports whether a path is a mount or device of the volume as recorded.
func (n *Node) mounted(ctx context.Context, known *volume.NodeVolume, path string) (bool, error) {
	if target := known.TargetAt(path); target != nil {
		return n.presenter(known).stillPublished(ctx, known, target)
	}
	if known.Stage != nil && known.Stage.Path == path {
		return n.presenter(known).stillStaged(ctx, known)
	}
	return false, nil
}

// bind mounts source at path, which it makes where needed. A mount that exists
// there already must be this one.
func (n *Node) bind(ctx context.Context, source, path string, o mount.Options) error {
	err := mount.EnsureBind(ctx, n.cfg.Mounter, source, path, o)
	if errors.Is(err, mount.ErrOccupied) {
		return fmt.Errorf("%w: %w", err, volume.ErrPrecondition)
	}
	return err
}

// Stats implements volume.NodeService.
func (n *Node) Stats(ctx context.Context, id volume.ID, path string) (*volume.Stats, error) {
	known := n.get(id)
	if known == nil || !known.At(path) && !n.deviceAt(ctx, known, path) {
		return nil, fmt.Errorf("volume %q at %q: %w", id, path, volume.ErrNotFound)
	}
	if known.Ephemeral != nil {
		return n.presenter(known).stats(ctx, known, known.Ephemeral.Size)
	}
	persistent, err := n.lookupPersistent(id)
	if err != nil {
		return nil, err
	}
	return n.presenter(known).stats(ctx, known, persistent.Capacity)
}

// get returns a copy that the caller may change, or nil.
func (n *Node) get(id volume.ID) *volume.NodeVolume {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if known := n.volumes[id]; known != nil {
		return known.Clone()
	}
	return nil
}

// save makes a record durable, or removes one that says nothing any more.
func (n *Node) save(known *volume.NodeVolume) error {
	id := string(known.ID)
	if known.Unused() {
		if err := n.records.Delete(id); err != nil {
			return err
		}
	} else if err := n.records.Put(id, *known); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if known.Stage == nil {
		delete(n.applied, known.ID)
	}
	if known.Unused() {
		delete(n.volumes, known.ID)
		return nil
	}
	n.volumes[known.ID] = known.Clone()
	return nil
}

// lookupPersistent reads the controller's record of a volume.
func (n *Node) lookupPersistent(id volume.ID) (*volume.Volume, error) {
	found, err := n.persistent.Get(string(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("volume %q: %w", id, volume.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	return &found, nil
}

// checkPath refuses paths that cannot be meant: relative ones, the root, and
// those that lead into the state directory or contain it.
func (n *Node) checkPath(path string) error {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" {
		return fmt.Errorf("path %q: must be absolute, without \"..\", double or trailing slashes, and not the root: %w", path, volume.ErrInvalid)
	}
	if within(path, n.cfg.StateDir) || within(n.cfg.StateDir, path) {
		return fmt.Errorf("path %q: must not contain or be inside the state directory %q: %w", path, n.cfg.StateDir, volume.ErrInvalid)
	}
	for _, pool := range slices.Sorted(maps.Keys(n.cfg.PoolDirs)) {
		if dir := n.cfg.PoolDirs[pool]; within(path, dir) || within(dir, path) {
			return fmt.Errorf("path %q: must not contain or be inside the directory %q of pool %q: %w", path, dir, pool, volume.ErrInvalid)
		}
	}
	return nil
}

func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// dropDeadTargets forgets the targets that are not mounted any more, and
// returns the paths of the living.
func (n *Node) dropDeadTargets(ctx context.Context, known *volume.NodeVolume) ([]string, error) {
	var living []string
	var failure error
	known.Targets = slices.DeleteFunc(known.Targets, func(t volume.Target) bool {
		mounted, err := n.cfg.Mounter.Mounted(ctx, t.Path)
		if err != nil {
			failure = err
			return false
		}
		if mounted {
			living = append(living, t.Path)
		}
		return !mounted
	})
	return living, failure
}

// All returns what the node knows, sorted by id.
func (n *Node) All() []*volume.NodeVolume {
	n.mu.RLock()
	defer n.mu.RUnlock()
	all := make([]*volume.NodeVolume, 0, len(n.volumes))
	for _, id := range slices.Sorted(maps.Keys(n.volumes)) {
		all = append(all, n.volumes[id].Clone())
	}
	return all
}
