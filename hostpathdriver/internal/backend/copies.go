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
	"github.com/longshore-csi/longshore/driverkit/state"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/copier"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// A volume or snapshot that is made of something else has its record before
// it has its contents. Whoever holds the lock of the copy may copy: any process, in
// any order, each going on where the one before came to its end. Only the
// record says when contents are complete.

// Unfilled implements volume.CopyService.
func (v *Volumes) Unfilled(context.Context) ([]volume.ID, error) {
	return v.unfilledWholes(), nil
}

// unfilledWholes has a group in the place of its snapshots.
func (v *Volumes) unfilledWholes() []volume.ID {
	ids := v.unfilled.ids()
	wholes := make([]volume.ID, 0, len(ids))
	for _, id := range ids {
		if member, err := v.snapshots.catalog.get(id); err == nil && member.Group != "" {
			id = member.Group
		}
		wholes = append(wholes, id)
	}
	return slices.Compact(slices.Sorted(slices.Values(wholes)))
}

// Copy implements volume.CopyService. It is called outside of the turns of
// this process, so it looks at the disk and not at the memory.
func (v *Volumes) Copy(ctx context.Context, id volume.ID, then func(context.Context) error) (err error) {
	unlock, err := v.lockCopy(id)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	w, err := v.readWork(id)
	if errors.Is(err, volume.ErrNotFound) || (err == nil && w == nil) {
		v.forgetCopy(ctx, id) // the next holder of the lock will find the same
	}
	if err != nil || w == nil {
		return err
	}
	v.cfg.Step.at("copy:contents")
	if err := w.run(ctx); err != nil {
		return err
	}
	if err := then(ctx); err != nil {
		return err
	}
	for _, part := range w.parts {
		v.forgetCopy(ctx, part)
	}
	v.forgetCopy(ctx, id)
	return nil
}

// work is what makes contents complete.
type work struct {
	run func(ctx context.Context) error
	// parts are the members of a group.
	parts []volume.ID
}

// readWork returns what is to be done; nil when the contents are complete.
func (v *Volumes) readWork(id volume.ID) (*work, error) {
	group, err := v.groups.records.Get(string(id))
	switch {
	case err == nil:
		return v.readGroup(&group)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	c, err := v.readCopy(id)
	if err != nil || c == nil {
		return nil, err
	}
	return &work{run: func(ctx context.Context) error { return v.makeCopy(ctx, c) }}, nil
}

// Complete implements volume.CopyService.
func (v *Volumes) Complete(ctx context.Context, id volume.ID) error {
	v.cfg.Step.at("copy:record")
	if filled, err := v.volumes.catalog.get(id); err == nil {
		filled.Filling = false
		if err := v.volumes.put(filled); err != nil {
			return err
		}
		klog.FromContext(ctx).V(2).Info("Filled volume", logging.KeyVolumeID, id)
		v.unfilled.note(id, nil, false)
		return nil
	}
	filled, err := v.snapshots.catalog.get(id)
	if errors.Is(err, volume.ErrNotFound) {
		return v.completeGroup(ctx, id)
	}
	if err != nil {
		return err
	}
	return v.completeSnapshot(ctx, filled)
}

func (v *Volumes) completeSnapshot(ctx context.Context, filled *volume.Snapshot) error {
	filled.Filling = false
	if err := v.snapshots.put(filled); err != nil {
		return err
	}
	v.unfilled.note(filled.ID, nil, false)
	klog.FromContext(ctx).V(2).Info("Filled snapshot", logging.KeySnapshotID, filled.ID)
	return nil
}

// contentsCopy is a copy that is to be made.
type contentsCopy struct {
	id     volume.ID
	source volume.Source
	// from and to are where the contents are.
	from, to *Contents
	fromID   volume.ID
	toForm   volume.Form
	// size is that of the result.
	size int64
	// replay says that the result is a volume whose file system will be mounted.
	replay bool
}

// readCopy returns what is to be copied; nil when the contents are complete.
func (v *Volumes) readCopy(id volume.ID) (*contentsCopy, error) {
	c := &contentsCopy{id: id}
	target, err := v.volumes.records.Get(string(id))
	switch {
	case err == nil && !target.Filling:
		return nil, nil
	case err == nil:
		c.source, c.to, c.toForm, c.size = *target.Source, v.volumes.contents(&target), target.Form(), target.Capacity
		c.replay = target.FSType != ""
		return c, v.readSource(c)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	snapshot, err := v.snapshots.records.Get(string(id))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("copy contents to %q: it was deleted: %w", id, volume.ErrNotFound)
	case err != nil:
		return nil, err
	case !snapshot.Filling:
		return nil, nil
	}
	c.source, c.to, c.toForm, c.size = volume.Source{Volume: snapshot.Source}, v.snapshots.contents(&snapshot), snapshot.Form, snapshot.Size
	return c, v.readSource(c)
}

func (v *Volumes) readSource(c *contentsCopy) error {
	if c.source.Snapshot != "" {
		found, err := v.snapshots.records.Get(string(c.source.Snapshot))
		if err != nil {
			return err
		}
		c.from, c.fromID = v.snapshots.contents(&found), found.ID
		return nil
	}
	found, err := v.volumes.records.Get(string(c.source.Volume))
	if err != nil {
		return err
	}
	c.from, c.fromID = v.volumes.contents(&found), found.ID
	return nil
}

// makeCopy makes a copy, or goes on with it.
func (v *Volumes) makeCopy(ctx context.Context, c *contentsCopy) error {
	err := v.runCopy(ctx, c)
	if err == nil {
		return nil
	}
	if gone(c.to.Path(c.id)) { // another process has deleted what was to be filled
		err = errors.Join(volume.ErrNotFound, err)
	}
	return exhausted(fmt.Errorf("copy the contents of %v to %q: %w", c.source, c.id, err))
}

func (v *Volumes) runCopy(ctx context.Context, c *contentsCopy) error {
	o := copier.Options{Progress: v.copyPath(c.id, "progress"), Step: v.cfg.Step}
	if !c.toForm.Disk {
		result, err := copier.Tree(ctx, c.from.Path(c.fromID), c.to.Path(c.id), o)
		if err == nil && result.Torn {
			klog.FromContext(ctx).Info("Copied a directory that was written to meanwhile", logging.KeyVolumeID, c.fromID)
		}
		return err
	}
	if blank, err := c.makeBlank(); err != nil || blank {
		return err
	}
	if c.replay {
		if err := c.to.CopyUnreplayed(c.id); err != nil {
			return err
		}
	}
	result, err := copier.File(ctx, c.from.Disk(c.fromID), c.to.Disk(c.id), o)
	switch {
	case err != nil:
		return err
	case result.Torn:
		return errors.Join(copier.Forget(o.Progress), fmt.Errorf("it was written to meanwhile, and its disk cannot share blocks: blocks of different moments make no file system; "+
			"stop its users, or keep volumes on XFS with reflink or btrfs: %w", volume.ErrPrecondition))
	}
	return c.to.Resize(c.id, c.toForm, c.size)
}

// makeBlank copies an image that has no file system yet: the copy has none
// either. Before the contents: what is formatted meanwhile is copied as it is
// then, and formatted again.
func (c *contentsCopy) makeBlank() (bool, error) {
	blank, err := c.from.Unformatted(c.fromID)
	if err != nil {
		return false, err
	}
	if blank && c.toForm.FSType != "" {
		return true, c.to.Create(c.id, c.toForm, c.size, volume.Attributes{})
	}
	// It was blank maybe when an earlier attempt looked.
	marked, err := c.to.Unformatted(c.id)
	if err == nil && marked {
		err = c.to.Formatted(c.id)
	}
	return false, err
}

// exhausted says in the terms of the domain that a disk is full.
func exhausted(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: %w", volume.ErrExhausted, err)
	}
	return err
}

func (v *Volumes) copiesDir() string { return filepath.Join(v.cfg.StateDir, copiesDir) }

func (v *Volumes) copyPath(id volume.ID, what string) string {
	return filepath.Join(v.copiesDir(), string(id)+"."+what)
}

// lockCopy takes the right to copy. A process that dies loses it.
func (v *Volumes) lockCopy(id volume.ID) (unlock func() error, err error) {
	file, err := os.OpenFile(v.copyPath(id, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock of the copy to %q: %w", id, err)
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = fmt.Errorf("copy contents to %q: another process is at it: %w", id, volume.ErrBusy)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file.Close, nil
}

// forgetCopy removes what is not needed once contents are complete or gone.
// What stays is removed at start.
func (v *Volumes) forgetCopy(ctx context.Context, id volume.ID) {
	lock, progress := v.copyPath(id, "lock"), v.copyPath(id, "progress")
	if gone(lock) && gone(progress) {
		return
	}
	err := copier.Forget(progress)
	if lockErr := os.Remove(lock); !errors.Is(lockErr, fs.ErrNotExist) { // a member has none
		err = errors.Join(err, lockErr)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not remove what a copy has left; the next start does", logging.KeyPath, lock)
	}
}

// sweepCopies removes what is left of copies that have ended.
func (v *Volumes) sweepCopies() error {
	entries, err := os.ReadDir(v.copiesDir())
	if err != nil {
		return err
	}
	unfilled := map[string]bool{}
	for _, id := range append(v.unfilledWholes(), v.unfilled.ids()...) {
		unfilled[string(id)] = true
	}
	for _, entry := range entries {
		id, _, _ := strings.Cut(entry.Name(), ".")
		if unfilled[id] {
			continue
		}
		if err := os.Remove(filepath.Join(v.copiesDir(), entry.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return state.SyncDir(v.copiesDir())
}
