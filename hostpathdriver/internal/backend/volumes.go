package backend

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/quota"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// VolumesConfig configures the controller side.
type VolumesConfig struct {
	// StateDir holds records and contents.
	StateDir string
	// PoolDirs are the directories of pools that have one, for their contents.
	PoolDirs map[string]string
	// Placement selects the node of a volume.
	Placement volume.Placement
	// Pools account for space.
	Pools *volume.Pools
	// MaxSize is the largest volume in bytes.
	MaxSize int64
	// OfflineExpansion refuses to expand a volume in use.
	OfflineExpansion bool
	// Attach is true when volumes are attached before use, so that the
	// attachments show which volumes are in use.
	Attach bool
	// AttachLimit is the number of attachments per node; zero is no limit.
	AttachLimit int
	// Mutable are the parameters that may be changed later.
	Mutable volume.Mutable
	// ProtectUsed refuses to delete a volume that is in use.
	ProtectUsed bool
	// Mounter reads the mount table.
	Mounter mount.Mounter
	// Quotas limit directories to their size, where the file system can; nil is the
	// kernel.
	Quotas quota.Quotas
	// Step is for crash tests.
	Step Step
}

// Volumes is the controller side: persistent volumes, and snapshots of them.
type Volumes struct {
	cfg       VolumesConfig
	homes     *homes
	volumes   store[volume.Volume, *volume.Volume]
	snapshots store[volume.Snapshot, *volume.Snapshot]
	groups    store[volume.Group, *volume.Group]
	slots     slots
	unfilled  unfilled
}

var (
	_ volume.Service         = (*Volumes)(nil)
	_ volume.SnapshotService = (*Volumes)(nil)
	_ volume.GroupService    = (*Volumes)(nil)
	_ volume.CopyService     = (*Volumes)(nil)
)

// OpenVolumes reads the records and brings the disk in line with them. The
// caller holds the lock of the controller role, now and in each later call.
func OpenVolumes(ctx context.Context, cfg VolumesConfig) (*Volumes, error) {
	if cfg.Quotas == nil {
		cfg.Quotas = quota.New()
	}
	found, err := openHomes(ctx, &homes{
		root: cfg.StateDir, names: []string{volumesDir, snapshotsDir}, mounter: cfg.Mounter, quotas: cfg.Quotas, pools: cfg.PoolDirs, step: cfg.Step,
	})
	if err != nil {
		return nil, err
	}
	v := &Volumes{cfg: cfg, homes: found}
	err = errors.Join(
		v.volumes.open(found, volumeKind, recordsDir, volumesDir),
		v.snapshots.open(found, snapshotKind, snapshotRecordsDir, snapshotsDir),
		v.groups.open(found, groupKind, groupRecordsDir, ""),
	)
	if err == nil {
		err = os.MkdirAll(v.copiesDir(), 0o700)
	}
	if err == nil {
		err = v.Recover(ctx)
	}
	if err != nil {
		return nil, err
	}
	return v, nil
}

// Support implements volume.Service.
func (v *Volumes) Support() volume.Support { return support() }

// Get implements volume.Service.
func (v *Volumes) Get(_ context.Context, id volume.ID) (*volume.Volume, error) {
	return v.volumes.catalog.get(id)
}

// Find implements volume.Service.
func (v *Volumes) Find(_ context.Context, name string) (*volume.Volume, error) {
	return v.volumes.catalog.find(name)
}

// List implements volume.Service.
func (v *Volumes) List(_ context.Context, req volume.ListRequest) (*volume.Page, error) {
	list, next, err := v.volumes.catalog.page(req, nil)
	if err != nil {
		return nil, err
	}
	return &volume.Page{Volumes: list, Next: next}, nil
}

// Create implements volume.Service. What has a source is filled later.
func (v *Volumes) Create(ctx context.Context, req *volume.CreateRequest) (*volume.Volume, error) {
	created, attributes, err := v.plan(req)
	if err != nil {
		return nil, err
	}
	if err := v.reserve(created, attributes.Pool); err != nil {
		return nil, fmt.Errorf("create volume named %q: %w", req.Name, err)
	}
	if created.Home, err = v.homes.of(ctx, created.Pool); err == nil {
		err = v.materialize(created, attributes)
	}
	if err != nil {
		v.cfg.Pools.Release(created.Pool, created.Capacity)
		return nil, err
	}
	v.unfilled.note(created.ID, created.Source, created.Filling)
	klog.FromContext(ctx).V(2).Info("Created volume", logging.KeyVolumeID, created.ID, logging.KeyVolumeName, created.Name,
		logging.KeyCapacity, created.Capacity, logging.KeyNode, created.Node)
	return created.Clone(), nil
}

// reserve charges the requested pool. If the request names none, the pool of the
// source is preferred: the copy can share blocks there.
func (v *Volumes) reserve(created *volume.Volume, wanted string) (err error) {
	if wanted == "" && created.Pool != "" {
		if _, err := v.cfg.Pools.Reserve(created.Pool, created.Capacity); err == nil {
			return nil
		}
	}
	created.Pool, err = v.cfg.Pools.Reserve(wanted, created.Capacity)
	return err
}

// plan returns the record of the new volume. It changes nothing.
func (v *Volumes) plan(req *volume.CreateRequest) (*volume.Volume, volume.Attributes, error) {
	attributes, err := volume.ParseParameters(req.Parameters)
	if err != nil {
		return nil, attributes, err
	}
	origin, err := v.origin(req.Source)
	if err != nil {
		return nil, attributes, err
	}
	form, err := v.chooseForm(req.Capabilities, attributes, origin)
	if err != nil {
		return nil, attributes, err
	}
	if err := v.cfg.Mutable.Check(req.Mutable, form); err != nil {
		return nil, attributes, err
	}
	size, node, err := v.place(req, form, origin)
	if err != nil {
		return nil, attributes, err
	}
	near := ""
	if origin != nil {
		near = origin.Pool
	}
	return &volume.Volume{
		ID:           newID(),
		Name:         req.Name,
		Capacity:     size,
		Pool:         near,
		Parameters:   req.Parameters,
		Capabilities: req.Capabilities,
		FSType:       form.FSType,
		Source:       req.Source,
		Filling:      req.Source != nil,
		Node:         node,

		MutableParameters: req.Mutable,
	}, attributes, nil
}

// chooseForm selects the form of a volume with these capabilities, and checks them.
func (v *Volumes) chooseForm(list []volume.Capability, attributes volume.Attributes, origin *volume.Origin) (volume.Form, error) {
	form, err := v.Support().ChooseForm(attributes, list, origin)
	if err != nil {
		return form, err
	}
	return form, v.Support().CheckCapabilities(form, list)
}

// origin looks up a source; nil is no source.
func (v *Volumes) origin(source *volume.Source) (*volume.Origin, error) {
	switch {
	case source == nil:
		return nil, nil
	case source.Snapshot != "":
		found, err := v.snapshots.catalog.get(source.Snapshot)
		if err != nil {
			return nil, fmt.Errorf("volume content source: %w", err)
		}
		return found.Origin(), nil
	}
	found, err := v.volumes.catalog.get(source.Volume)
	if err != nil {
		return nil, fmt.Errorf("volume content source: %w", err)
	}
	return found.Origin(), nil
}

// place selects size and node of a new volume.
func (v *Volumes) place(req *volume.CreateRequest, form volume.Form, origin *volume.Origin) (size int64, node string, err error) {
	wanted := req.Range
	if origin != nil {
		if err := origin.CheckCreate(req); err != nil {
			return 0, "", err
		}
		wanted.Required = max(wanted.Required, origin.Size)
	}
	if size, err = v.Support().Size(form, wanted, v.cfg.MaxSize); err != nil {
		return 0, "", err
	}
	if origin != nil && origin.Node != "" {
		return size, origin.Node, nil
	}
	node, err = v.cfg.Placement.ChooseNode(req.Requirements)
	return size, node, err
}

func (v *Volumes) materialize(created *volume.Volume, attributes volume.Attributes) error {
	return v.volumes.add(v.cfg.Step, created, func() error {
		if created.Filling {
			return v.volumes.contents(created).Begin(created.ID, created.Form(), created.Capacity)
		}
		return v.volumes.contents(created).Create(created.ID, created.Form(), created.Capacity, attributes)
	})
}

// Delete implements volume.Service. An unknown volume may have contents left
// from a Delete that was interrupted; they go, and the answer is ErrNotFound.
func (v *Volumes) Delete(ctx context.Context, id volume.ID) error {
	gone, err := v.volumes.catalog.get(id)
	if errors.Is(err, volume.ErrNotFound) {
		if purgeErr := v.homes.purge(ctx, volumesDir, id); purgeErr != nil {
			return purgeErr
		}
		return err
	}
	if err != nil {
		return err
	}
	if err := v.checkUnused(ctx, gone); err != nil {
		return err
	}
	if err := v.unfilled.checkSource(*gone.Origin()); err != nil {
		return fmt.Errorf("delete volume %q: %w", id, err)
	}
	if err := v.volumes.discard(ctx, v.cfg.Step, gone); err != nil {
		return err
	}
	v.slots.release(gone.PublishedNodes()...)
	v.cfg.Pools.Release(v.cfg.Placement.PoolOf(gone.Node, gone.Pool), gone.Capacity)
	klog.FromContext(ctx).V(2).Info("Deleted volume", logging.KeyVolumeID, id, logging.KeyVolumeName, gone.Name)
	v.unfilled.note(id, nil, false)
	v.forgetCopy(ctx, id)
	v.cfg.Step.at("delete:purge")
	return v.volumes.contents(gone).Purge(ctx, id)
}

func (v *Volumes) checkUnused(ctx context.Context, gone *volume.Volume) error {
	users, err := v.users(gone)
	if err != nil || len(users) == 0 {
		return err
	}
	if v.cfg.ProtectUsed {
		return fmt.Errorf("delete volume %q: it is in use on node %s: %w", gone.ID, users[0], volume.ErrInUse)
	}
	klog.FromContext(ctx).Info("Deleting a volume that is in use", logging.KeyVolumeID, gone.ID, logging.KeyNode, users[0])
	return nil
}

// users returns the nodes that use a volume: with attachment those that it is
// attached to, without those that have a record of it.
func (v *Volumes) users(used *volume.Volume) ([]string, error) {
	if v.cfg.Attach {
		return used.PublishedNodes(), nil
	}
	return v.stagedOn(used)
}

// stagedOn returns the nodes that have a record of a volume.
func (v *Volumes) stagedOn(used *volume.Volume) ([]string, error) {
	nodes := []string{used.Node}
	if used.Node == "" {
		var err error
		if nodes, err = nodeNames(v.cfg.StateDir); err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(nodes, func(node string) bool { return !viewNode(v.cfg.StateDir, node).Exists(string(used.ID)) }), nil
}

// newID returns a random id in the form of a UUID, version 4.
func newID() volume.ID {
	var b [16]byte
	rand.Read(b[:]) // documented never to fail
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	s := hex.EncodeToString(b[:])
	return volume.ID(s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:])
}
