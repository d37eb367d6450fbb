package backend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/state"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/contents"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// ControllerConfig configures a Controller.
type ControllerConfig struct {
	Config

	// Topology ties each volume to a node.
	Topology bool
	// AttachLimit is the greatest number of attachments per node; zero is no limit.
	AttachLimit int
	// Mutable are the parameters that may be changed later.
	Mutable volume.Mutable
	// ProtectUsed refuses to delete a volume that is in use.
	ProtectUsed bool
	// OfflineExpansion refuses to expand a volume in use.
	OfflineExpansion bool
	// NodeExpansion says that COs call NodeExpandVolume for volumes that nodes must expand, too.
	NodeExpansion bool
	// BlockSize is the size of the blocks in which ranges of a snapshot are reported, in bytes; zero reports them as they are.
	BlockSize int64
	// Changed is called after a volume was expanded or modified; nil does nothing.
	Changed func(ctx context.Context, id string) error
}

// Controller is the part of the driver that makes and deletes volumes, snapshots and groups. Its calls are those of driverkit, which makes one call at a time
// for each object. Open precedes the first call.
type Controller struct {
	cfg       ControllerConfig
	volumes   index[volume.Volume]
	snapshots index[volume.Snapshot]
	groups    index[volume.Group]
	// copies are those in progress, under the names of the new objects. Nothing of them is on disk but incomplete contents, so that after a crash they begin again.
	copies *driverkit.Background
	bin    bin

	mu sync.Mutex
	// attached is the number of attachments by node.
	attached map[string]int
	// poolsOf are the pools by node; see pools.
	poolsOf map[string]*volume.Pools
}

// NewController returns a controller that was not opened.
func NewController(cfg ControllerConfig) *Controller { return &Controller{cfg: cfg} }

// Open reads the records, and brings the disk in line with them after a process that may have been killed in the middle of a call. The caller holds the lock
// of the controller from now until Close.
func (c *Controller) Open(ctx context.Context) error {
	c.copies = &driverkit.Background{}
	c.bin.start(c.cfg.Patience)
	if err := c.open(ctx); err != nil {
		c.Close()
		return fmt.Errorf("open volumes in %s: %w", c.cfg.StateDir, err)
	}
	klog.FromContext(ctx).Info("Loaded volumes", logging.KeyCount, len(c.volumes.ids), logging.KeySnapshots, len(c.snapshots.ids), logging.KeyPath, c.cfg.StateDir)
	return nil
}

// Close cancels the copies in progress, and what is done in the background.
func (c *Controller) Close() {
	closeAll(c.copies, c.bin.removals)
}

func (c *Controller) open(ctx context.Context) error {
	c.poolsOf = map[string]*volume.Pools{}
	if c.cfg.NodeID != "" {
		c.poolsOf[c.cfg.NodeID] = c.cfg.Pools // That is charged for inline volumes, too.
	}
	err := errors.Join(
		c.volumes.open(ctx, c.cfg.StateDir, recordsDir, volumeKind, func(v *volume.Volume) string { return v.Name }),
		c.snapshots.open(ctx, c.cfg.StateDir, snapshotRecordsDir, snapshotKind, func(s *volume.Snapshot) string { return s.Name }),
		c.groups.open(ctx, c.cfg.StateDir, groupRecordsDir, groupKind, func(g *volume.Group) string { return g.Name }),
	)
	if err != nil {
		return err
	}
	for _, root := range c.cfg.roots(c.cfg.StateDir) {
		if err := c.prepareRoot(ctx, root); err != nil {
			return err
		}
	}
	if err := c.adoptVolumes(ctx); err != nil {
		return err
	}
	if err := c.adoptSnapshots(ctx); err != nil {
		return err
	}
	for _, root := range c.cfg.roots(c.cfg.StateDir) {
		if contents.At(root, contents.Volumes, c.cfg.Mounter).CheckReachable() != nil {
			continue
		}
		err := errors.Join(c.cfg.recoverContents(ctx, root, contents.Volumes, c.volumes.known), c.cfg.recoverContents(ctx, root, contents.Snapshots, c.snapshots.known))
		if err != nil {
			return err
		}
		c.bin.empty(ctx, contents.At(root, contents.Volumes, c.cfg.Mounter))
	}
	c.attached = map[string]int{}
	for _, v := range c.volumes.all() {
		for _, node := range v.PublishedNodes() {
			c.attached[node]++
		}
	}
	return nil
}

// prepareRoot makes the directories below a root, unless volumes are recorded there: then the disk of the pool is missing, and may come back. A pool that
// cannot be used keeps no driver from starting.
func (c *Controller) prepareRoot(ctx context.Context, root string) error {
	if root == c.cfg.StateDir {
		return contents.Prepare(root, contents.Volumes, contents.Snapshots)
	}
	err := contents.At(root, contents.Volumes, c.cfg.Mounter).CheckReachable()
	used := slices.ContainsFunc(c.volumes.all(), func(v *volume.Volume) bool { return v.Root == root }) ||
		slices.ContainsFunc(c.snapshots.all(), func(s *volume.Snapshot) bool { return s.Root == root })
	switch {
	case err == nil || !used && !gone(root): // An interrupted start may have made some of the directories.
		err = contents.Prepare(root, contents.Volumes, contents.Snapshots)
	case !used:
		err = fmt.Errorf("%s does not exist: %w", root, driverkit.ErrUnavailable)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "A pool cannot be used", logging.KeyPath, root)
	}
	return nil
}

// adoptVolumes charges the pools, and finishes deletions and expansions.
func (c *Controller) adoptVolumes(ctx context.Context) error {
	for _, v := range c.volumes.all() {
		store := c.cfg.contentsOf(v)
		exists, err := c.exists(ctx, store, v.ID)
		if err == nil && v.Filling && store.CheckReachable() == nil {
			exists, err = false, store.Discard(ctx, v.ID)
		}
		if err == nil && !exists {
			err = c.volumes.remove(v.ID)
		}
		if err != nil {
			return err
		}
		if !exists {
			continue
		}
		c.pools(v.Node).Adopt(v.Pool, v.Capacity)
		if err := c.finishExpansion(v); err != nil {
			klog.FromContext(ctx).Error(err, "An expansion that was interrupted cannot be completed", logging.KeyVolumeID, v.ID)
		}
	}
	return nil
}

// adoptSnapshots charges the pools, and finishes deletions, also of members of a group that was not complete.
func (c *Controller) adoptSnapshots(ctx context.Context) error {
	for _, s := range c.snapshots.all() {
		store := c.snapshotContents(s)
		exists, err := c.exists(ctx, store, s.ID)
		if err == nil && exists && (s.Filling || s.Group != "" && !c.groups.known(s.Group)) && store.CheckReachable() == nil {
			klog.FromContext(ctx).Info("Deleting a snapshot that was not complete", logging.KeySnapshotID, s.ID, logging.KeyGroupID, s.Group)
			exists, err = false, store.Discard(ctx, s.ID)
		}
		if err == nil && !exists {
			err = c.snapshots.remove(s.ID)
		}
		if err != nil {
			return err
		}
		if exists {
			c.pools(s.Node).Adopt(s.Pool, s.Size)
		}
	}
	return nil
}

// exists reports whether an object exists; it does not when its contents are in the trash. A complete copy is moved to where it belongs: it is complete if there
// is a record.
func (*Controller) exists(ctx context.Context, store *contents.Store, id string) (bool, error) {
	if store.Exists(id) {
		return true, nil
	}
	if store.Copies().Exists(id) {
		return true, store.Adopt(id, func() error { return nil })
	}
	if store.Discarded(id) {
		return false, nil
	}
	logger := klog.FromContext(ctx).WithValues(logging.KeyVolumeID, id, logging.KeyPath, store.Path(id))
	if err := store.CheckReachable(); err != nil {
		logger.Error(err, "Contents cannot be reached until their disk is back")
		return true, nil
	}
	logger.Error(nil, "Contents are missing; what they belong to can only be deleted")
	return true, nil
}

func (c *Controller) snapshotContents(s *volume.Snapshot) *contents.Store {
	return contents.At(cmp.Or(s.Root, c.cfg.StateDir), contents.Snapshots, c.cfg.Mounter)
}

// nodeKey is the key of the value of a context that says for which node a call that another process passed on is.
type nodeKey struct{}

// WithNode returns the context of a call that a process with that node has passed on.
func WithNode(ctx context.Context, node string) context.Context {
	return context.WithValue(ctx, nodeKey{}, node)
}

// own is the only node on which the process that has the call makes volumes; empty for a controller alone, which makes volumes on every node.
func (c *Controller) own(ctx context.Context) string {
	if node, passedOn := ctx.Value(nodeKey{}).(string); passedOn {
		return node
	}
	return c.cfg.NodeID
}

// pools are those that objects on a node are charged to: each node has its own, but without topology, and in a controller alone, all nodes share them.
func (c *Controller) pools(node string) *volume.Pools {
	if c.cfg.NodeID == "" || !c.cfg.Topology {
		node = c.cfg.NodeID
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.poolsOf[node] == nil {
		c.poolsOf[node] = c.cfg.Pools.Empty()
	}
	return c.poolsOf[node]
}

// Get implements driverkit.Provisioner.
func (c *Controller) Get(_ context.Context, req *driverkit.GetRequest) (*driverkit.Volume, error) {
	found, err := c.volumes.get(req.ID)
	if err != nil {
		return nil, err
	}
	return volumeOf(found), nil
}

// List returns a page of the volumes.
func (c *Controller) List(_ context.Context, req *driverkit.ListRequest) (*driverkit.Page[*driverkit.Volume], error) {
	return page(c.volumes.page(req.After, req.Limit, nil), volumeOf), nil
}

// page converts what was listed.
func page[From, To any](list []From, convert func(From) To) *driverkit.Page[To] {
	entries := make([]To, 0, len(list))
	for _, one := range list {
		entries = append(entries, convert(one))
	}
	return &driverkit.Page[To]{Entries: entries}
}

func volumeOf(v *volume.Volume) *driverkit.Volume {
	answer := &driverkit.Volume{ID: v.ID, Size: v.Capacity, Topology: volume.Segments(v.Node), Context: map[string]string{}, Nodes: v.PublishedNodes()}
	if v.Source != nil {
		answer.Source = &driverkit.Source{Snapshot: v.Source.Snapshot, Volume: v.Source.Volume}
	}
	return answer
}

// Validate compares a request with the form of a volume.
func (c *Controller) Validate(_ context.Context, req *driverkit.ValidateRequest) error {
	found, err := c.volumes.get(req.ID)
	if err != nil {
		return err
	}
	for _, capability := range req.Capabilities {
		if err := found.CheckUse(capability); err != nil {
			return err
		}
	}
	if _, err := volume.ParseParameters(req.Parameters); err != nil {
		return err
	}
	return c.cfg.Mutable.Check(req.MutableParameters, found.Form())
}

// View returns the record of a volume as the controller of this or another process has written it.
func (c *Config) View(id string) (*volume.Volume, error) {
	if err := volume.CheckID(id); err != nil {
		return nil, driverkit.NotFound("volume", id)
	}
	found, err := state.View[volume.Volume](filepath.Join(c.StateDir, recordsDir), volumeKind).Get(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, driverkit.NotFound("volume", id)
	}
	return &found, err
}
