package backend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/contents"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/copier"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// origin is the source of a copy.
type origin struct {
	key   string
	form  volume.Form
	size  int64
	node  string
	pool  string
	id    string
	store *contents.Store
}

// Create implements driverkit.Provisioner.
func (c *Controller) Create(ctx context.Context, req *driverkit.CreateRequest) (*driverkit.Volume, error) {
	if err := c.copies.Wait(ctx, volumeCopy(req.Name)); err != nil {
		return nil, err
	}
	if found := c.volumes.find(req.Name); found != nil {
		if err := found.CheckSame(req); err != nil {
			return nil, err
		}
		return volumeOf(found), nil
	}
	from, err := c.origin(req.Source)
	if err != nil {
		return nil, err
	}
	if from == nil {
		created, parameters, err := c.plan(ctx, req, nil)
		if err != nil {
			return nil, err
		}
		return c.added(req, c.make(ctx, created, parameters))
	}
	return c.added(req, c.copies.Do(ctx, volumeCopy(req.Name), func(ctx context.Context) error {
		created, parameters, err := c.plan(ctx, req, from)
		if err != nil {
			return err
		}
		return c.fill(ctx, created, parameters, from)
	}, from.key))
}

// added returns the volume of a name that was just created, perhaps by another call, whose request was another one.
func (c *Controller) added(req *driverkit.CreateRequest, err error) (*driverkit.Volume, error) {
	if err != nil {
		return nil, err
	}
	found := c.volumes.find(req.Name)
	if found == nil {
		return nil, fmt.Errorf("volume named %q: was deleted since: %w", req.Name, driverkit.ErrBusy)
	}
	if err := found.CheckSame(req); err != nil {
		return nil, err
	}
	return volumeOf(found), nil
}

// origin looks up a source; nil is no source.
func (c *Controller) origin(source *driverkit.Source) (*origin, error) {
	switch {
	case source == nil:
		return nil, nil //nolint:nilnil // No source is no error.
	case source.Snapshot != "":
		found, err := c.snapshots.get(source.Snapshot)
		if err != nil {
			return nil, fmt.Errorf("volume_content_source: %w", err)
		}
		return &origin{snapshotKey(found.ID), found.Form, found.Size, found.Node, found.Pool, found.ID, c.snapshotContents(found)}, nil
	}
	found, err := c.volumes.get(source.Volume)
	if err != nil {
		return nil, fmt.Errorf("volume_content_source: %w", err)
	}
	return c.originOf(found), nil
}

func (c *Controller) originOf(v *volume.Volume) *origin {
	return &origin{volumeKey(v.ID), v.Form(), v.Capacity, v.Node, v.Pool, v.ID, c.cfg.contentsOf(v)}
}

// plan returns the record of the new volume, whose pool is charged.
func (c *Controller) plan(ctx context.Context, req *driverkit.CreateRequest, from *origin) (*volume.Volume, volume.Parameters, error) {
	parameters, err := volume.ParseParameters(req.Parameters)
	if err != nil {
		return nil, parameters, err
	}
	created := &volume.Volume{ID: newID(), Name: req.Name, Parameters: req.Parameters, MutableParameters: maps.Clone(req.MutableParameters),
		Capabilities: volume.CapabilitiesOf(req.Capabilities)}
	size := req.Size
	var sourceForm *volume.Form
	near := ""
	if from != nil {
		created.Source = &volume.Source{Snapshot: req.Source.Snapshot, Volume: req.Source.Volume}
		sourceForm, near = &from.form, from.pool
		if size, err = from.atLeast(req); err != nil {
			return nil, parameters, err
		}
	}
	form, err := volume.ChooseForm(parameters, req.Capabilities, sourceForm)
	if err != nil {
		return nil, parameters, err
	}
	created.FSType = form.FSType
	if err := c.cfg.Mutable.Check(req.MutableParameters, form); err != nil {
		return nil, parameters, err
	}
	if created.Capacity, err = form.Size(size, c.cfg.MaxSize); err != nil {
		return nil, parameters, err
	}
	if created.Node, err = c.place(ctx, req.Topology, from); err != nil {
		return nil, parameters, err
	}
	if created.Pool, err = reserve(c.pools(created.Node), parameters.Pool, near, created.Capacity); err != nil {
		return nil, parameters, fmt.Errorf("create volume named %q: %w", req.Name, err)
	}
	created.Root = c.cfg.root(created.Pool)
	return created, parameters, nil
}

// atLeast returns the range for the size of a copy, which is not smaller than its source.
func (o *origin) atLeast(req *driverkit.CreateRequest) (driverkit.Range, error) {
	r := req.Size
	if r.Required > 0 && r.Required < o.size || r.Limit > 0 && r.Limit < o.size {
		return r, fmt.Errorf("capacity_range: required_bytes %d, limit_bytes %d: %s has %d bytes: %w", r.Required, r.Limit, o.key, o.size, driverkit.ErrOutOfRange)
	}
	r.Required = max(r.Required, o.size)
	return r, nil
}

// place selects the node of a new volume; empty means that it is reachable from every node.
func (c *Controller) place(ctx context.Context, required driverkit.TopologyRequirement, from *origin) (string, error) {
	own := c.own(ctx)
	switch {
	case from != nil && from.node != "":
		own = from.node
	case !c.cfg.Topology:
		return "", nil
	case own == "":
		for _, list := range [][]driverkit.Segments{required.Preferred, required.Requisite} {
			for _, segments := range list {
				if node := segments[volume.TopologyKey]; node != "" {
					return node, volume.CheckNodeID(node)
				}
			}
		}
		return "", nil
	}
	_, err := required.Choose(volume.Segments(own))
	if err != nil {
		err = fmt.Errorf("place volume: only %s=%s can be served: %w", volume.TopologyKey, own, err)
	}
	return own, err
}

// reserve charges the wanted pool. Without one the pool of the source is preferred: the copy can share blocks there.
func reserve(pools *volume.Pools, wanted, near string, size int64) (string, error) {
	if wanted == "" && near != "" {
		if pool, err := pools.Reserve(near, size); err == nil {
			return pool, nil
		}
	}
	return pools.Reserve(wanted, size)
}

// make makes an empty volume, whose pool is charged.
func (c *Controller) make(ctx context.Context, created *volume.Volume, p volume.Parameters) error {
	store := c.cfg.contentsOf(created)
	c.cfg.Step.at("create:contents")
	err := store.Create(created.ID, created.Form(), created.Capacity, p)
	if err == nil {
		c.cfg.Step.at("create:record")
		err = c.volumes.save(created)
	}
	if err == nil {
		logCreated(ctx, created)
		return nil
	}
	// The record may exist although writing it was reported as failed, so it is deleted first. While it exists the contents stay.
	if undo := c.volumes.remove(created.ID); undo != nil {
		return errors.Join(err, undo)
	}
	c.pools(created.Node).Release(created.Pool, created.Capacity)
	return undone(err, store.Abandon(created.ID))
}

// fill makes a volume with the contents of a source.
func (c *Controller) fill(ctx context.Context, created *volume.Volume, p volume.Parameters, from *origin) error {
	store := c.cfg.contentsOf(created)
	err := c.copy(ctx, from, store, created.ID, created.Form())
	if err == nil && created.FSType == "" && created.Form().Disk {
		err = store.Copies().Grow(created.ID, created.Form(), 0, created.Capacity)
	} else if err == nil {
		err = c.finishCopy(store.Copies(), created, p)
	}
	if err == nil {
		err = c.volumes.adopt(created, store, c.cfg.Step)
	}
	if err == nil {
		logCreated(ctx, created)
		return nil
	}
	undo, cancel := withUndoTimeout(ctx)
	defer cancel()
	if failed := c.volumes.remove(created.ID); failed != nil {
		return errors.Join(err, failed)
	}
	c.pools(created.Node).Release(created.Pool, created.Capacity)
	return undone(err, errors.Join(store.Copies().Remove(undo, created.ID), store.Discard(undo, created.ID), store.Purge(undo, created.ID)))
}

// finishCopy gives the copy of a file system or of a directory its size, and the owner and mode that its parameters name.
func (*Controller) finishCopy(copies *contents.Store, created *volume.Volume, p volume.Parameters) error {
	if !created.Form().Disk {
		if !p.Owned {
			return nil
		}
		return contents.Own(copies.Path(created.ID), p)
	}
	if err := copies.Grow(created.ID, created.Form(), 0, created.Capacity); err != nil {
		return err
	}
	if blank, err := copies.Unformatted(created.ID); err != nil || blank {
		return err
	}
	return copies.MarkUnreplayed(created.ID)
}

func logCreated(ctx context.Context, created *volume.Volume) {
	klog.FromContext(ctx).V(2).Info("Created volume", logging.KeyVolumeID, created.ID, logging.KeyVolumeName, created.Name,
		logging.KeyCapacity, created.Capacity, logging.KeyNode, created.Node)
}

// copy makes an incomplete copy in a store.
func (c *Controller) copy(ctx context.Context, from *origin, to *contents.Store, id string, form volume.Form) error {
	copies := to.Copies()
	c.cfg.Step.at("copy:begin")
	if err := copies.Begin(id); err != nil {
		return err
	}
	c.cfg.Step.at("copy:contents")
	if !form.Disk {
		result, err := copier.Tree(ctx, from.store.Path(from.id), copies.Path(id))
		if err == nil && result.Torn {
			klog.FromContext(ctx).Info("Copied a directory that was written to meanwhile", logging.KeyVolumeID, from.id)
		}
		return copyError(from, err)
	}
	// An image without a file system has no contents. This is looked up first: what is formatted meanwhile is copied as it is then, and formatted again.
	blank, err := from.store.Unformatted(from.id)
	if err != nil {
		return err
	}
	if blank && form.FSType != "" {
		return copies.Create(id, form, from.size, volume.Parameters{})
	}
	result, err := copier.File(ctx, from.store.Disk(from.id), copies.Disk(id))
	if err == nil && result.Torn {
		err = fmt.Errorf("it was written to meanwhile, and its disk cannot share blocks: blocks of different moments make no file system; "+
			"stop its users, or keep volumes on XFS with reflink or btrfs: %w", driverkit.ErrPrecondition)
	}
	return copyError(from, err)
}

func copyError(from *origin, err error) error {
	if err == nil {
		return nil
	}
	return exhausted(fmt.Errorf("copy the contents of %s: %w", from.key, err))
}

// Delete implements driverkit.Provisioner. An unknown volume may have contents left from a call that was interrupted; they go, and the answer is ErrNotFound.
func (c *Controller) Delete(ctx context.Context, req *driverkit.DeleteRequest) error {
	doomed, err := c.volumes.get(req.ID)
	if err != nil {
		return cmp.Or(c.purge(ctx, contents.Volumes, req.ID), err) // ErrNotFound only when nothing is left
	}
	if err := c.checkUnused(ctx, doomed); err != nil {
		return err
	}
	if err := c.checkSource(volumeKey(doomed.ID)); err != nil {
		return fmt.Errorf("delete volume %q: %w", doomed.ID, err)
	}
	store := c.cfg.contentsOf(doomed)
	c.cfg.Step.at("delete:discard")
	if err := store.Discard(ctx, doomed.ID); err != nil {
		return err
	}
	c.cfg.Step.at("delete:record")
	if err := c.volumes.remove(doomed.ID); err != nil {
		return err
	}
	c.detached(doomed.PublishedNodes()...)
	c.bin.owe(store, doomed.ID, func() { c.pools(doomed.Node).Release(doomed.Pool, doomed.Capacity) })
	klog.FromContext(ctx).V(2).Info("Deleted volume", logging.KeyVolumeID, doomed.ID, logging.KeyVolumeName, doomed.Name)
	c.cfg.Step.at("delete:purge")
	return c.bin.purge(ctx, store, doomed.ID)
}

// purge removes what is left of an object that has no record any more.
func (c *Controller) purge(ctx context.Context, kind, id string) error {
	if volume.CheckID(id) != nil {
		return nil //nolint:nilerr // There is no such object.
	}
	for _, root := range c.cfg.roots(c.cfg.StateDir) {
		if err := c.bin.purge(ctx, contents.At(root, kind, c.cfg.Mounter), id); err != nil {
			return err
		}
	}
	return nil
}

// checkUnused refuses to delete a volume in use: one that is attached, or without attachments one that is staged.
func (c *Controller) checkUnused(ctx context.Context, doomed *volume.Volume) error {
	users, err := doomed.PublishedNodes(), error(nil)
	if !c.cfg.Attach {
		users, err = c.cfg.usedOn(doomed.ID)
	}
	if err != nil || len(users) == 0 {
		return err
	}
	if c.cfg.ProtectUsed {
		return fmt.Errorf("delete volume %q: it is in use on node %s: %w", doomed.ID, users[0], driverkit.ErrInUse)
	}
	klog.FromContext(ctx).Info("Deleting a volume that is in use", logging.KeyVolumeID, doomed.ID, logging.KeyNode, users[0])
	return nil
}

// now is the time of new objects.
func now() time.Time { return time.Now().UTC() }
