package backend

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/contents"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/copier"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// The snapshots of a group are of one moment. Nothing stops workloads: the fingerprints of all volumes are taken before the first is copied, and again when
// the last copy is complete. If none has changed, each copy is what its volume was all the time; else all copies are made again. The record of the group is
// written when each member has its own, and makes all of them exist.

const (
	// attempts is how often the volumes of a group are copied before the call fails because somebody keeps writing.
	attempts = 6
	// firstPause is the pause after the first attempt; each further one is twice as long, 1.6 s in all.
	firstPause = 50 * time.Millisecond
)

// CreateGroupSnapshot implements driverkit.GroupSnapshotter.
func (c *Controller) CreateGroupSnapshot(ctx context.Context, req *driverkit.CreateGroupSnapshotRequest) (*driverkit.GroupSnapshot, error) {
	if err := c.copies.Wait(ctx, groupCopies(req.Name)); err != nil {
		return nil, err
	}
	if found := c.groups.find(req.Name); found != nil {
		if !maps.Equal(found.Parameters, req.Parameters) {
			return nil, fmt.Errorf("group %q has id %q, but its parameters differ: %w", req.Name, found.ID, driverkit.ErrExists)
		}
		return c.wholeGroup(found)
	}
	if err := volume.CheckSnapshotParameters(req.Parameters); err != nil {
		return nil, err
	}
	var sources []*volume.Volume
	var keys []string
	for _, id := range req.Volumes {
		source, err := c.volumes.get(id)
		if err != nil {
			return nil, err
		}
		if slices.Contains(keys, volumeKey(id)) {
			return nil, fmt.Errorf("source_volume_ids: %q is there twice: %w", id, driverkit.ErrInvalid)
		}
		sources, keys = append(sources, source), append(keys, volumeKey(id))
	}
	err := c.copies.Do(ctx, groupCopies(req.Name), func(ctx context.Context) error {
		g := &groupCopy{Controller: c, group: &volume.Group{ID: newID(), Name: req.Name, Created: now(), Parameters: req.Parameters}, sources: sources}
		err := g.make(ctx)
		if err != nil {
			err = undone(fmt.Errorf("group %q: %w", req.Name, err), g.undo(ctx))
		}
		return err
	}, keys...)
	if err != nil {
		return nil, err
	}
	found := c.groups.find(req.Name)
	if found == nil {
		return nil, fmt.Errorf("group named %q: was deleted since: %w", req.Name, driverkit.ErrBusy)
	}
	return c.wholeGroup(found)
}

// groupCopy is a group that is being made.
type groupCopy struct {
	*Controller

	group   *volume.Group
	sources []*volume.Volume
	members []*volume.Snapshot
}

func (g *groupCopy) make(ctx context.Context) error {
	for i, source := range g.sources {
		member := &volume.Snapshot{Name: fmt.Sprintf("%s-%d", g.group.ID, i), Parameters: g.group.Parameters, Group: g.group.ID}
		if err := g.planSnapshot(member, source); err != nil {
			return err
		}
		g.members, g.group.Members = append(g.members, member), append(g.group.Members, member.ID)
	}
	if err := g.copyUnchanged(ctx); err != nil {
		return err
	}
	for _, member := range g.members {
		if err := g.addSnapshot(ctx, member, g.snapshotContents(member)); err != nil {
			return err
		}
	}
	g.cfg.Step.at("group:record")
	if err := g.groups.save(g.group); err != nil {
		return err
	}
	klog.FromContext(ctx).V(2).Info("Created group of snapshots", logging.KeyGroupID, g.group.ID, logging.KeyCount, len(g.members))
	return nil
}

// copyUnchanged copies all volumes until none of them was written to meanwhile.
func (g *groupCopy) copyUnchanged(ctx context.Context) error {
	for attempt := 1; ; attempt++ {
		changed, err := g.copyAll(ctx)
		if err != nil || changed == nil {
			return err
		}
		if attempt == attempts {
			return fmt.Errorf("volume %q is written to all the time, so that a snapshot of it would not be of the same moment as those of the others; stop its users: %w",
				changed.ID, driverkit.ErrPrecondition)
		}
		if err := wait(ctx, firstPause<<(attempt-1)); err != nil {
			return err
		}
	}
}

// wait waits, or returns the error of a context that ends before.
func wait(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// copyAll copies all volumes, and returns one that was written to meanwhile, if there is one.
func (g *groupCopy) copyAll(ctx context.Context) (changed *volume.Volume, err error) {
	before := make([]copier.Fingerprint, len(g.sources))
	for i, source := range g.sources {
		if before[i], err = g.fingerprint(ctx, source); err != nil {
			return nil, err
		}
	}
	for i, source := range g.sources {
		store := g.snapshotContents(g.members[i])
		err := store.Copies().Remove(ctx, g.members[i].ID) // That of an earlier attempt.
		if err == nil {
			err = g.copy(ctx, g.originOf(source), store, g.members[i].ID, g.members[i].Form)
		}
		if now, failed := g.fingerprint(ctx, source); failed == nil && !unchanged(before[i], now) {
			return source, nil // That may be why the copy failed.
		}
		if err != nil {
			return nil, err
		}
	}
	for i, source := range g.sources {
		now, err := g.fingerprint(ctx, source)
		if err != nil {
			return nil, err
		}
		if !unchanged(before[i], now) {
			return source, nil
		}
	}
	return nil, nil //nolint:nilnil // nil means that no volume has changed.
}

// fingerprint takes the fingerprint of a volume. Where the file system does not track changes it is the zero one for a volume that no node uses, and an
// ErrPrecondition for any other.
func (g *groupCopy) fingerprint(ctx context.Context, source *volume.Volume) (copier.Fingerprint, error) {
	taken, err := copier.TakeFingerprint(ctx, g.cfg.contentsOf(source).Place(source.ID, source.Form()))
	if !errors.Is(err, copier.ErrNoChangeTracking) {
		return taken, err
	}
	nodes, usedErr := g.cfg.usedOn(source.ID)
	if usedErr == nil && len(nodes) == 0 {
		return copier.Fingerprint{}, nil
	}
	return taken, fmt.Errorf("volume %q is in use, and it cannot be found out whether a snapshot of it is of the same moment as those of the others; stop its users: %w: %w",
		source.ID, driverkit.ErrPrecondition, errors.Join(err, usedErr))
}

// unchanged reports whether two fingerprints are of the same contents; those that cannot be taken are.
func unchanged(before, after copier.Fingerprint) bool {
	return before.Equal(after) || before == copier.Fingerprint{} && after == copier.Fingerprint{}
}

// undo leaves nothing of a group that could not be made.
func (g *groupCopy) undo(ctx context.Context) error {
	err := g.groups.remove(g.group.ID)
	for _, member := range g.members {
		err = errors.Join(err, g.undoSnapshot(ctx, member))
	}
	return err
}

// DeleteGroupSnapshot implements driverkit.GroupSnapshotter. The record goes last, so that an interrupted call can be repeated.
func (c *Controller) DeleteGroupSnapshot(ctx context.Context, req *driverkit.DeleteGroupSnapshotRequest) error {
	doomed, err := c.groups.get(req.ID)
	if err != nil {
		return err
	}
	for _, id := range doomed.Members {
		if err := c.checkSource(snapshotKey(id)); err != nil {
			return fmt.Errorf("delete group %q: %w", req.ID, err)
		}
	}
	for _, id := range doomed.Members {
		member, err := c.snapshots.get(id)
		if err == nil {
			err = c.removeSnapshot(ctx, member)
		} else { // An earlier call deleted it, maybe not all of its contents.
			err = c.purge(ctx, contents.Snapshots, id)
		}
		if err != nil {
			return err
		}
	}
	c.cfg.Step.at("delete:record")
	if err := c.groups.remove(req.ID); err != nil {
		return err
	}
	klog.FromContext(ctx).V(2).Info("Deleted group of snapshots", logging.KeyGroupID, req.ID)
	return nil
}

// GetGroupSnapshot implements driverkit.GroupSnapshotter.
func (c *Controller) GetGroupSnapshot(_ context.Context, req *driverkit.GetGroupSnapshotRequest) (*driverkit.GroupSnapshot, error) {
	found, err := c.groups.get(req.ID)
	if err != nil {
		return nil, err
	}
	return c.groupOf(found), nil
}

// wholeGroup returns a group with all its members, or an ErrBusy where its deletion was interrupted.
func (c *Controller) wholeGroup(g *volume.Group) (*driverkit.GroupSnapshot, error) {
	answer := c.groupOf(g)
	if !answer.Ready {
		return nil, fmt.Errorf("group %q: its deletion has begun, delete it: %w", g.ID, driverkit.ErrBusy)
	}
	return answer, nil
}

// groupOf has the members that exist: those that do not were deleted by a call that was interrupted, and the group is to be deleted.
func (c *Controller) groupOf(g *volume.Group) *driverkit.GroupSnapshot {
	answer := &driverkit.GroupSnapshot{ID: g.ID, Created: g.Created, Ready: true}
	for _, id := range g.Members {
		if member, err := c.snapshots.get(id); err == nil {
			answer.Snapshots = append(answer.Snapshots, snapshotOf(member))
		} else {
			answer.Ready = false
		}
	}
	return answer
}
