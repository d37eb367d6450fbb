package backend

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/keymutex"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/driverkit/state"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/contents"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
	"github.com/longshore-csi/longshore/hostpathdriver/loop"
)

// NodeConfig configures a Node.
type NodeConfig struct {
	Config

	// MaxExpandSize is the largest size in bytes that a volume may have when it is expanded on this node; zero is no limit.
	MaxExpandSize int64
	// MaxVolumes returns the limit of volumes that NodeGetInfo reports.
	MaxVolumes func() int64
	// Expand is the controller's part of an expansion, where the CO asks the node alone for it; nil where the CO asks the controller first.
	Expand func(ctx context.Context, req *driverkit.ExpandRequest) error
	// ExpandUnasked has Reconcile expand devices and file systems in use: the CO never calls NodeExpandVolume.
	ExpandUnasked bool
}

// Node is the part of the driver that makes volumes available on a node. driverkit mounts them, and has the journal of that.
type Node struct {
	cfg   NodeConfig
	dir   string
	uses  *state.Records[use]
	locks keymutex.Locks[string]
	meter meter
	bin   bin
	// preparations are those of images, see prepare.
	preparations *driverkit.Background

	mu sync.Mutex
	// applied are the settings of the devices of a volume, as this process applied them.
	applied map[string]settings
}

// use is the record of a volume on a node: one that is staged, or an inline volume. The controller reads it to know which volumes are in use. It is written
// before a device is attached, and deleted when none is left.
type use struct {
	ID string `json:"id"`
	// Path is where the volume is mounted; empty for an inline volume that is not staged yet.
	Path string `json:"path,omitempty"`
	// Root is the directory below which the contents are kept.
	Root string      `json:"root"`
	Form volume.Form `json:"form"`
	// ReadOnly says that the device refuses writes.
	ReadOnly bool `json:"readOnly,omitempty"`
	// Disk identifies the file of a disk, also after the file was deleted.
	Disk loop.Identity `json:"disk,omitzero"`
	// Inline is set for an inline volume.
	Inline *inline `json:"inline,omitempty"`
}

// RecordID implements state.Identified.
func (u use) RecordID() string { return u.ID }

func (n *Node) contents(u *use) *contents.Store {
	return contents.At(u.Root, contents.Volumes, n.cfg.Mounter)
}

func (n *Node) disk(u *use) string { return n.contents(u).Disk(u.ID) }

// NewNode makes a node that has read nothing yet.
func NewNode(cfg NodeConfig) *Node {
	return &Node{cfg: cfg, dir: NodeDir(cfg.StateDir, cfg.NodeID), applied: map[string]settings{}, preparations: &driverkit.Background{}}
}

// Open reads the records of a node, and releases what no workload uses any more.
func (n *Node) Open(ctx context.Context) error {
	n.bin.start(n.cfg.Patience)
	if err := n.open(ctx); err != nil {
		n.Close()
		return fmt.Errorf("open node %q in %s: %w", n.cfg.NodeID, n.cfg.StateDir, err)
	}
	return nil
}

// Close ends what is done in the background.
func (n *Node) Close() { closeAll(n.preparations, n.bin.removals) }

func (n *Node) open(ctx context.Context) (err error) {
	if err := contents.Prepare(n.dir, contents.Volumes, prepareDir); err != nil {
		return err
	}
	if n.uses, err = state.Open[use](filepath.Join(n.dir, usesDir), useKind); err != nil {
		return err
	}
	loaded, damaged, err := n.uses.Load()
	if err != nil {
		return err
	}
	reportDamaged(ctx, damaged)
	if err := n.unmountPreparations(ctx); err != nil {
		return err
	}
	for _, u := range loaded {
		n.adopt(ctx, &u)
	}
	known := func(id string) bool { return n.uses.Exists(id) || n.uses.Quarantined(id) }
	for _, root := range append(n.cfg.poolNodes(), n.dir) {
		if err := contents.Prepare(root, contents.Volumes); err != nil { // An interrupted call may have made some of the directories.
			return err
		}
		if err := n.cfg.recoverContents(ctx, root, contents.Volumes, known); err != nil {
			return err
		}
		n.bin.empty(ctx, contents.At(root, contents.Volumes, n.cfg.Mounter))
	}
	n.sweepDevices(ctx)
	klog.FromContext(ctx).Info("Loaded volumes in use", logging.KeyCount, len(loaded))
	return nil
}

// adopt takes a use over, or forgets one that is over: of a volume that is not mounted any more, because the machine was restarted. What fails is tried again
// at the next start.
func (n *Node) adopt(ctx context.Context, u *use) {
	logger := klog.FromContext(ctx).WithValues(logging.KeyVolumeID, u.ID)
	timed, cancel := withUndoTimeout(ctx)
	defer cancel()
	var err error
	switch {
	case u.Inline != nil:
		n.cfg.Pools.Adopt(u.Inline.Pool, u.Inline.Size) // driverkit deletes those whose target is gone.
	case n.over(timed, u):
		logger.Info("Forgot a volume that is not mounted any more", logging.KeyStagingPath, u.Path)
		err = n.release(timed, u)
	default:
		err = n.reconcile(timed, u)
	}
	if err != nil {
		logger.Error(err, "Could not take over a volume in use")
	}
}

// over reports whether a stage is over for sure.
func (n *Node) over(ctx context.Context, u *use) bool {
	if u.Form.Device() {
		device, err := n.cfg.Devices.Device(ctx, n.disk(u), u.ReadOnly)
		return err == nil && device == "" && !gone(n.disk(u))
	}
	mounted, err := n.cfg.Mounter.Mounted(ctx, u.Path)
	return err == nil && !mounted
}

// get returns the use of a volume, or nil.
func (n *Node) get(id string) *use {
	if volume.CheckID(id) != nil {
		return nil
	}
	found, err := n.uses.Get(id)
	if err != nil {
		return nil
	}
	return &found
}

// size returns the size of a volume as its record has it.
func (n *Node) size(u *use) (int64, error) {
	if u.Inline != nil {
		return u.Inline.Size, nil
	}
	found, err := n.cfg.View(u.ID)
	if err != nil {
		return 0, err
	}
	return found.Capacity, nil
}

// checkSize reports whether the disk of a volume is as large as it was made.
func (n *Node) checkSize(u *use) error {
	want, err := n.size(u)
	if err != nil {
		return err
	}
	if found, err := n.cfg.View(u.ID); err == nil && found.Before > 0 { // an expansion is not complete
		want = found.Before
	}
	if err := n.contents(u).CheckSize(u.ID, want); err != nil {
		return fmt.Errorf("stage volume %q: %w", u.ID, err)
	}
	return nil
}

// DescribeNode reports the limit of the node.
func (n *Node) DescribeNode(_ context.Context, node *driverkit.Node) error {
	node.MaxVolumes = n.cfg.MaxVolumes()
	return nil
}

// OwnsMount looks for a mount of the volume.
func (n *Node) OwnsMount(ctx context.Context, req *driverkit.MountRequest) (bool, error) {
	if err := volume.CheckID(req.ID); err != nil {
		return false, nil //nolint:nilerr // The driver has no volume of such an id.
	}
	for _, root := range slices.Concat(n.cfg.roots(n.cfg.StateDir), n.cfg.poolNodes(), []string{n.dir}) {
		if own, err := n.shows(ctx, req.Path, contents.At(root, contents.Volumes, n.cfg.Mounter), req.ID); own || err != nil {
			return own, err
		}
	}
	return false, nil
}

// shows reports whether a path is a mount of the directory, the file system or the device of a volume.
func (n *Node) shows(ctx context.Context, path string, store *contents.Store, id string) (bool, error) {
	sources := []string{store.Path(id)}
	for _, readOnly := range []bool{false, true} {
		device, err := n.cfg.Devices.Device(ctx, store.Disk(id), readOnly)
		if err != nil {
			return false, err
		}
		if device == "" {
			continue
		}
		if shown, _, err := n.cfg.Filesystems.IsMountOf(ctx, device, path); shown || err != nil {
			return shown, err
		}
		sources = append(sources, device)
	}
	for _, source := range sources {
		if own, err := n.cfg.Mounter.IsMountOf(ctx, source, path, mount.Options{}); own || err != nil {
			return own, err
		}
	}
	return false, nil
}

// Stage implements driverkit.Stager.
func (n *Node) Stage(ctx context.Context, req *driverkit.StageRequest) (*driverkit.Staged, error) {
	unlock, err := n.locks.Lock(ctx, req.ID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	u, parameters, readAhead, err := n.plan(req)
	if err != nil {
		return nil, err
	}
	if !u.Form.Disk {
		n.cfg.Step.at("stage:record")
		return &driverkit.Staged{Directory: n.contents(u).Path(u.ID)}, n.uses.Put(u.ID, *u)
	}
	if u.Disk, err = loop.Identify(n.disk(u)); err != nil {
		return nil, fmt.Errorf("stage volume %q: look at its file: %w", req.ID, err)
	}
	n.cfg.Step.at("stage:record")
	if err := n.uses.Put(u.ID, *u); err != nil {
		return nil, err
	}
	if u.Form.FSType != "" {
		err := n.preparations.Do(ctx, preparation(u.ID), func(ctx context.Context) error { return n.prepare(ctx, u, parameters) })
		if err != nil {
			return nil, err
		}
	}
	if err := n.checkSize(u); err != nil { // one that is blank was made as large by prepare
		return nil, err
	}
	device, err := n.cfg.Devices.Attach(ctx, n.disk(u), u.ReadOnly)
	if err != nil {
		return nil, err
	}
	if err := n.apply(ctx, u, settings{readAhead: readAhead}); err != nil {
		return nil, err
	}
	klog.FromContext(ctx).V(2).Info("Attached volume", logging.KeyVolumeID, req.ID, logging.KeyPath, device)
	return &driverkit.Staged{Device: device, FSType: u.Form.FSType, Formatted: u.Form.FSType != "", ReadOnly: u.ReadOnly}, nil
}

// ReadOnlyDevice makes a second device of a volume. Unstage detaches it.
func (n *Node) ReadOnlyDevice(ctx context.Context, req *driverkit.StageRequest) (*driverkit.Staged, error) {
	unlock, err := n.locks.Lock(ctx, req.ID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	u, _, readAhead, err := n.plan(req)
	if err != nil {
		return nil, err
	}
	device, err := n.cfg.Devices.Attach(ctx, n.disk(u), true)
	if err != nil {
		return nil, err
	}
	return &driverkit.Staged{Device: device}, n.apply(ctx, u, settings{readAhead: readAhead})
}

// plan returns the use of a volume as requested, its parameters and its read-ahead, -1 for that of the kernel.
func (n *Node) plan(req *driverkit.StageRequest) (*use, volume.Parameters, int64, error) {
	if u := n.get(req.ID); u != nil && u.Inline != nil {
		parameters, err := volume.ParseInline(u.Inline.Attributes)
		u.Path, u.ReadOnly = req.Path, req.ReadOnly
		return u, parameters, -1, err
	}
	found, err := n.cfg.View(req.ID)
	if err != nil {
		return nil, volume.Parameters{}, -1, err
	}
	if err := n.checkUsable(found, req.Capability); err != nil {
		return nil, volume.Parameters{}, -1, err
	}
	u := &use{ID: req.ID, Path: req.Path, Root: found.Root, Form: found.Form(), ReadOnly: req.ReadOnly}
	if u.Root == "" {
		u.Root = n.cfg.StateDir
	}
	if n.cfg.Attach {
		attached := found.PublishedOn(n.cfg.NodeID)
		if attached == nil {
			return nil, volume.Parameters{}, -1, fmt.Errorf("stage volume %q: it is not attached to node %q: %w", req.ID, n.cfg.NodeID, driverkit.ErrPrecondition)
		}
		u.ReadOnly = u.ReadOnly || attached.ReadOnly
	}
	readAhead, ok := found.ReadAhead()
	if !ok {
		readAhead = -1
	}
	parameters, err := volume.ParseParameters(found.Parameters)
	return u, parameters, readAhead, err
}

// checkUsable refuses a volume that cannot be used here as a capability says.
func (n *Node) checkUsable(v *volume.Volume, capability driverkit.Capability) error {
	if err := v.CheckUse(capability); err != nil {
		return err
	}
	if err := v.CheckReachable(n.cfg.NodeID); err != nil {
		return err
	}
	return n.checkFSType(v.FSType)
}

// checkFSType refuses a file system that the node has no programs for, with an ErrPrecondition.
func (n *Node) checkFSType(fsType string) error {
	if types := n.cfg.Filesystems.Types(); fsType != "" && !slices.Contains(types, fsType) {
		return fmt.Errorf("file system type %q: node %q has the programs for %v only; install those of %s: %w", fsType, n.cfg.NodeID, types, fsType, driverkit.ErrPrecondition)
	}
	return nil
}

// Unstage implements driverkit.Stager.
func (n *Node) Unstage(ctx context.Context, req *driverkit.UnstageRequest) error {
	unlock, err := n.locks.Lock(ctx, req.ID)
	if err != nil {
		return err
	}
	defer unlock()
	if err := n.preparations.Wait(ctx, preparation(req.ID)); errors.Is(err, driverkit.ErrRunning) {
		return err
	}
	u := n.get(req.ID)
	if u == nil && n.uses.Quarantined(req.ID) {
		return n.releaseUnreadable(ctx, req.ID)
	}
	if u == nil || u.Path != req.Path { // Another driver may have staged it.
		return nil
	}
	return n.release(ctx, u)
}

// releaseUnreadable ends the use of a volume whose record cannot be read: the devices of its disk are detached, wherever that is, and what is left of the record goes. The device of a
// disk that was deleted is found at the next start.
func (n *Node) releaseUnreadable(ctx context.Context, id string) error {
	if err := n.unmount(ctx, filepath.Join(n.dir, prepareDir, id)); err != nil {
		return err
	}
	for _, root := range slices.Concat(n.cfg.roots(n.cfg.StateDir), n.cfg.poolNodes(), []string{n.dir}) {
		u := &use{ID: id, Root: root}
		if gone(n.disk(u)) {
			continue
		}
		if err := n.detach(ctx, u); err != nil {
			return err
		}
	}
	klog.FromContext(ctx).Info("Released a volume whose record cannot be read", logging.KeyVolumeID, id)
	return n.uses.DeleteQuarantined(id)
}

// release ends the use of a volume: its devices are detached, and the record is deleted, but for that of an inline volume, which lives on.
func (n *Node) release(ctx context.Context, u *use) error {
	if err := n.unmount(ctx, filepath.Join(n.dir, prepareDir, u.ID)); err != nil {
		return err
	}
	if u.Form.Disk {
		n.cfg.Step.at("unstage:detach")
		if err := n.detach(ctx, u); err != nil {
			return err
		}
	}
	n.meter.forget(u.ID)
	n.forgetSettings(u.ID)
	if u.Inline != nil {
		return nil
	}
	n.cfg.Step.at("unstage:record")
	return n.uses.Delete(u.ID)
}
