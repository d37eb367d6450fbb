package backend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// The snapshots of a group are of one moment, because no workload writes while they
// are made: a volume that is held cannot be staged for writing. Of one that is
// in use already it is found out whether somebody did, see cut.go. The group's
// record is written when each member has its own, and makes all of them exist;
// it is written again when all contents are complete.

// GetGroup implements volume.GroupService.
func (v *Volumes) GetGroup(_ context.Context, id volume.ID, members []volume.ID) (*volume.Group, error) {
	found, err := v.groups.catalog.get(id)
	if err != nil {
		return nil, err
	}
	if err := found.CheckMembers(members); err != nil {
		return nil, err
	}
	return v.withSnapshots(found)
}

// FindGroup implements volume.GroupService.
func (v *Volumes) FindGroup(_ context.Context, name string) (*volume.Group, error) {
	found, err := v.groups.catalog.find(name)
	if err != nil {
		return nil, err
	}
	return v.withSnapshots(found)
}

func (v *Volumes) withSnapshots(group *volume.Group) (*volume.Group, error) {
	group.Snapshots = make([]*volume.Snapshot, 0, len(group.Members))
	for _, id := range group.Members {
		member, err := v.snapshots.catalog.get(id)
		if errors.Is(err, volume.ErrNotFound) {
			return nil, fmt.Errorf("group %q: its deletion has begun, delete it: %w", group.ID, volume.ErrBusy)
		}
		if err != nil {
			return nil, err
		}
		group.Snapshots = append(group.Snapshots, member)
	}
	return group, nil
}

// CreateGroup implements volume.GroupService. The snapshots are filled later.
func (v *Volumes) CreateGroup(ctx context.Context, req *volume.GroupRequest) (*volume.Group, error) {
	if err := req.Check(); err != nil {
		return nil, err
	}
	sources := make([]*volume.Volume, 0, len(req.Sources))
	for _, id := range req.Sources {
		source, err := v.volumes.catalog.get(id)
		if err != nil {
			return nil, err
		}
		if err := errors.Join(source.CheckFilled(), source.CheckWritable()); err != nil {
			return nil, err
		}
		sources = append(sources, source)
	}
	group := &volume.Group{ID: newID(), Name: req.Name, Created: time.Now().UTC(), Parameters: req.Parameters}
	if err := v.makeGroup(ctx, group, sources); err != nil {
		return nil, errors.Join(err, v.undoGroup(ctx, group, sources))
	}
	klog.FromContext(ctx).V(2).Info("Created group of snapshots", logging.KeyGroupID, group.ID, logging.KeyCount, len(group.Members))
	return v.withSnapshots(group)
}

func (v *Volumes) makeGroup(ctx context.Context, group *volume.Group, sources []*volume.Volume) error {
	for _, source := range sources {
		if err := v.hold(source, group.ID); err != nil {
			return err
		}
	}
	for i, source := range sources {
		member, err := v.addSnapshot(ctx, source, &volume.Snapshot{
			Name: fmt.Sprintf("%s-%d", group.ID, i), Group: group.ID, Parameters: group.Parameters,
		})
		if err != nil {
			return err
		}
		group.Members = append(group.Members, member.ID)
	}
	v.cfg.Step.at("group:record")
	return v.groups.put(group)
}

// undoGroup leaves nothing of a group that could not be made whole.
func (v *Volumes) undoGroup(ctx context.Context, group *volume.Group, sources []*volume.Volume) error {
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	err := v.groups.records.Delete(string(group.ID))
	for _, id := range group.Members {
		err = errors.Join(err, v.removeSnapshot(undo, id))
	}
	for _, source := range sources {
		err = errors.Join(err, v.release(source.ID, group.ID))
	}
	return err
}

// hold keeps nodes from beginning to write to a volume, unless it is in use
// already. A node writes down what it is about to stage before it looks whether
// the volume is held: either it sees that, or its record is seen here.
func (v *Volumes) hold(source *volume.Volume, group volume.ID) error {
	if used, err := v.writable(source); err != nil || used {
		return err
	}
	v.cfg.Step.at("group:hold")
	held := source.Clone()
	held.Held = group
	if err := v.volumes.put(held); err != nil {
		return err
	}
	if used, err := v.writable(source); err != nil || !used {
		return err
	}
	return v.release(source.ID, group)
}

// writable reports whether a workload can write to a volume now.
func (v *Volumes) writable(source *volume.Volume) (bool, error) {
	nodes, err := v.stagedOn(source)
	if err != nil {
		return false, err
	}
	for _, node := range nodes {
		known, err := viewNode(v.cfg.StateDir, node).Get(string(source.ID))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was unstaged meanwhile
		}
		if err != nil {
			return false, err
		}
		if known.Stage == nil || !known.Stage.CannotWrite() {
			return true, nil
		}
	}
	return false, nil
}

// release lets nodes write again.
func (v *Volumes) release(id, group volume.ID) error {
	held, err := v.volumes.catalog.get(id)
	if errors.Is(err, volume.ErrNotFound) || (err == nil && held.Held != group) {
		return nil
	}
	if err != nil {
		return err
	}
	v.cfg.Step.at("group:release")
	held.Held = ""
	return v.volumes.put(held)
}

// completeGroup makes a group whole: its record says so for all snapshots at
// once, also if the driver is killed before they do.
func (v *Volumes) completeGroup(ctx context.Context, id volume.ID) error {
	group, err := v.groups.catalog.get(id)
	if err != nil {
		return err
	}
	whole := group.Clone()
	whole.Whole = true
	if group, err = v.withSnapshots(group); err != nil {
		return err
	}
	if err := v.groups.put(whole); err != nil {
		return err
	}
	for _, member := range group.Snapshots {
		v.cfg.Step.at("group:member")
		if err := v.completeSnapshot(ctx, member); err != nil {
			return err
		}
	}
	for _, member := range group.Snapshots {
		err = errors.Join(err, v.release(member.Source, id))
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not release the volumes of a group; the next start does", logging.KeyGroupID, id)
	}
	return nil
}

// DeleteGroup implements volume.GroupService. The record goes last, so that an
// interrupted call can be repeated.
func (v *Volumes) DeleteGroup(ctx context.Context, id volume.ID, members []volume.ID) error {
	gone, err := v.groups.catalog.get(id)
	if err != nil {
		return err
	}
	if err := gone.CheckMembers(members); err != nil {
		return err
	}
	for _, member := range gone.Members {
		if err := v.unfilled.checkSource(volume.Origin{Source: volume.Source{Snapshot: member}}); err != nil {
			return fmt.Errorf("delete group %q: %w", id, err)
		}
	}
	for _, member := range gone.Members {
		if found, err := v.snapshots.catalog.get(member); err == nil {
			if err := v.release(found.Source, id); err != nil {
				return err
			}
		}
		if err := v.removeSnapshot(ctx, member); err != nil && !errors.Is(err, volume.ErrNotFound) {
			return err
		}
	}
	if err := v.groups.discard(ctx, v.cfg.Step, gone); err != nil {
		return err
	}
	v.forgetCopy(ctx, id)
	klog.FromContext(ctx).V(2).Info("Deleted group of snapshots", logging.KeyGroupID, id)
	return nil
}
