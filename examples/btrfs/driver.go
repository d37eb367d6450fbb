package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/filesystem"
)

// The sizes of volumes in bytes: quotas count blocks.
const (
	smallest = 1 << 20
	sizeStep = 4096
)

// sizeAttribute is the only attribute of inline volumes, in bytes.
const sizeAttribute = "size"

// driver is what the driver can do. A volume is of one node, so that the node alone expands it: a controller may be asked on another one.
func (s *store) driver() driverkit.Driver {
	return driverkit.Driver{
		Provisioner: s, Stager: s, Snapshotter: s, Inliner: s,
		List: s.List, ListSnapshots: s.ListSnapshots, Capacity: s.Capacity, ExpandOnNode: s.ExpandOnNode, Usage: s.Usage,
	}
}

// Create implements driverkit.Provisioner.
func (s *store) Create(ctx context.Context, req *driverkit.CreateRequest) (*driverkit.Volume, error) {
	for name := range req.Parameters {
		return nil, fmt.Errorf("parameter %q: the driver has no parameters: %w", name, driverkit.ErrInvalid)
	}
	id := driverkit.IDFromName(req.Name)
	if found, err := s.find(volumes, id); !errors.Is(err, driverkit.ErrNotFound) {
		return s.volume(found), err
	}
	least, from := int64(smallest), ""
	if req.Source != nil {
		source, data, err := s.source(req.Source)
		if err != nil {
			return nil, err
		}
		least, from = source.Size, data
	}
	size, err := req.Size.Choose(least, sizeStep, 0)
	if err != nil {
		return nil, err
	}
	if _, err := req.Topology.Choose([]driverkit.Segments{s.node}); err != nil {
		return nil, err
	}
	if err := s.checkRoom(size); err != nil {
		return nil, err
	}
	made := &object{ID: id, Size: size, Source: req.Source, Created: time.Now()}
	return s.volume(made), s.make(ctx, volumes, made, from)
}

// source returns the object that a volume is made from, and its subvolume.
func (s *store) source(of *driverkit.Source) (*object, string, error) {
	kind, id := volumes, of.Volume
	if of.Snapshot != "" {
		kind, id = snapshots, of.Snapshot
	}
	found, err := s.find(kind, id)
	return found, s.data(kind, id), err
}

// checkRoom refuses a volume that is larger than what is free.
func (s *store) checkRoom(size int64) error {
	free, err := s.free()
	if err == nil && size > free {
		err = fmt.Errorf("%d bytes are free, %d are wanted: %w", free, size, driverkit.ErrExhausted)
	}
	return err
}

func (s *store) free() (int64, error) {
	var fs unix.Statfs_t
	err := unix.Statfs(s.root, &fs)
	return int64(fs.Bavail) * fs.Bsize, err //nolint:gosec // no disk is that large
}

func (s *store) volume(o *object) *driverkit.Volume {
	if o == nil {
		return nil
	}
	return &driverkit.Volume{ID: o.ID, Size: o.Size, Source: o.Source, Topology: []driverkit.Segments{s.node}}
}

// Delete implements driverkit.Provisioner.
func (s *store) Delete(ctx context.Context, req *driverkit.DeleteRequest) error {
	return s.delete(ctx, volumes, req.ID)
}

// Get implements driverkit.Provisioner.
func (s *store) Get(_ context.Context, req *driverkit.GetRequest) (*driverkit.Volume, error) {
	found, err := s.find(volumes, req.ID)
	return s.volume(found), err
}

// Stage implements driverkit.Stager: the kit bind-mounts the subvolume.
func (s *store) Stage(_ context.Context, req *driverkit.StageRequest) (*driverkit.Staged, error) {
	if _, err := s.find(volumes, req.ID); err != nil {
		return nil, err
	}
	return &driverkit.Staged{Directory: s.data(volumes, req.ID)}, nil
}

// Unstage implements driverkit.Stager. There is nothing to undo.
func (*store) Unstage(context.Context, *driverkit.UnstageRequest) error { return nil }

// List returns a page of the volumes.
func (s *store) List(_ context.Context, req *driverkit.ListRequest) (*driverkit.Page[*driverkit.Volume], error) {
	found, err := s.all(volumes)
	if err != nil {
		return nil, err
	}
	all := make([]*driverkit.Volume, 0, len(found))
	for _, o := range found {
		all = append(all, s.volume(o))
	}
	return driverkit.PageOf(all, func(v *driverkit.Volume) string { return v.ID }, req.After, req.Limit), nil
}

// Capacity returns what is free on this node.
func (s *store) Capacity(_ context.Context, req *driverkit.CapacityRequest) (*driverkit.Capacity, error) {
	if !s.node.Within(req.Topology) {
		return &driverkit.Capacity{}, nil
	}
	free, err := s.free()
	return &driverkit.Capacity{Available: free, LargestVolume: free, SmallestVolume: smallest}, err
}

// ExpandOnNode raises the quota of a volume.
func (s *store) ExpandOnNode(ctx context.Context, req *driverkit.NodeExpandRequest) (*driverkit.NodeExpanded, error) {
	found, err := s.find(volumes, req.ID)
	if err != nil {
		return nil, err
	}
	if found.Size, err = req.Size.Choose(found.Size, sizeStep, 0); err != nil {
		return nil, err
	}
	if err := s.limit(ctx, s.data(volumes, req.ID), found.Size); err != nil {
		return nil, err
	}
	return &driverkit.NodeExpanded{Size: found.Size}, found.write(s.path(volumes, req.ID))
}

// CreateSnapshot implements driverkit.Snapshotter.
func (s *store) CreateSnapshot(ctx context.Context, req *driverkit.CreateSnapshotRequest) (*driverkit.Snapshot, error) {
	for name := range req.Parameters {
		return nil, fmt.Errorf("parameter %q: the driver has no parameters: %w", name, driverkit.ErrInvalid)
	}
	id := driverkit.IDFromName(req.Name)
	if found, err := s.find(snapshots, id); !errors.Is(err, driverkit.ErrNotFound) {
		return s.snapshot(found), err
	}
	of, err := s.find(volumes, req.Volume)
	if err != nil {
		return nil, err
	}
	if _, err := req.Topology.Choose([]driverkit.Segments{s.node}); err != nil {
		return nil, err
	}
	made := &object{ID: id, Size: of.Size, Volume: of.ID, Created: time.Now()}
	return s.snapshot(made), s.make(ctx, snapshots, made, s.data(volumes, req.Volume))
}

func (s *store) snapshot(o *object) *driverkit.Snapshot {
	if o == nil {
		return nil
	}
	return &driverkit.Snapshot{ID: o.ID, Volume: o.Volume, Size: o.Size, Created: o.Created, Ready: true, Topology: []driverkit.Segments{s.node}}
}

// DeleteSnapshot implements driverkit.Snapshotter.
func (s *store) DeleteSnapshot(ctx context.Context, req *driverkit.DeleteSnapshotRequest) error {
	return s.delete(ctx, snapshots, req.ID)
}

// GetSnapshot implements driverkit.Snapshotter.
func (s *store) GetSnapshot(_ context.Context, req *driverkit.GetSnapshotRequest) (*driverkit.Snapshot, error) {
	found, err := s.find(snapshots, req.ID)
	return s.snapshot(found), err
}

// ListSnapshots returns a page of the snapshots.
func (s *store) ListSnapshots(_ context.Context, req *driverkit.ListSnapshotsRequest) (*driverkit.Page[*driverkit.Snapshot], error) {
	found, err := s.all(snapshots)
	if err != nil {
		return nil, err
	}
	var all []*driverkit.Snapshot
	for _, o := range found {
		if req.Volume == "" || req.Volume == o.Volume {
			all = append(all, s.snapshot(o))
		}
	}
	return driverkit.PageOf(all, func(s *driverkit.Snapshot) string { return s.ID }, req.After, req.Limit), nil
}

// CreateInline implements driverkit.Inliner.
func (s *store) CreateInline(ctx context.Context, req *driverkit.InlineRequest) (*driverkit.Inlined, error) {
	size := int64(smallest)
	for name, value := range req.Attributes {
		var err error
		if size, err = strconv.ParseInt(value, 10, 64); name != sizeAttribute || err != nil || size < smallest {
			return nil, fmt.Errorf("attribute %s=%q: must be %s=BYTES, at least %d: %w", name, value, sizeAttribute, smallest, driverkit.ErrInvalid)
		}
	}
	if _, err := s.find(volumes, req.ID); !errors.Is(err, driverkit.ErrNotFound) {
		return &driverkit.Inlined{}, err
	}
	if err := s.checkRoom(size); err != nil {
		return nil, err
	}
	return &driverkit.Inlined{}, s.make(ctx, volumes, &object{ID: req.ID, Size: size, Created: time.Now()}, "")
}

// DeleteInline implements driverkit.Inliner.
func (s *store) DeleteInline(ctx context.Context, req *driverkit.DeleteInlineRequest) error {
	return s.delete(ctx, volumes, req.ID)
}

// Usage returns what the quota of a volume counts: the file system itself knows that of all volumes together.
func (s *store) Usage(ctx context.Context, req *driverkit.UsageRequest) (*filesystem.Usage, error) {
	found, err := s.find(volumes, req.ID)
	if err != nil {
		return nil, err
	}
	out, err := btrfs(ctx, "qgroup", "show", "--raw", "-f", s.data(volumes, req.ID))
	if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	fields := strings.Fields(lines[len(lines)-1])
	if len(fields) < 2 {
		return nil, fmt.Errorf("btrfs qgroup show: has no usage: %q", out)
	}
	used, err := strconv.ParseInt(fields[1], 10, 64)
	return &filesystem.Usage{Bytes: filesystem.Space{Total: found.Size, Used: used, Available: max(0, found.Size-used)}}, err
}
