package backend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/copier"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// The snapshots of a group are of one moment. Of volumes that are held that is
// any moment: nobody writes to them. Volumes in use are not stopped. A stamp of
// each is taken before the first of them is copied, and when the last copy is
// complete all of them are looked at again. Who finds that none has changed has
// the proof that each copy is what its volume was at that moment: of two writes
// of which one waited for the other, there is never only the later one. Else
// the copies are unusable, and are made again.
//
// Stamps are written down before a copy that takes long, so that a crash does
// not make it begin again. Copies that share blocks are made again.

// groupCopy is what is to be copied for a group.
type groupCopy struct {
	id volume.ID
	// held are copies of volumes that nobody can write to, used of others.
	held, used []*contentsCopy
}

// readGroup returns what is to be done for a group; nil when all of it is
// complete. A group that is whole has its copies, but not all records say so.
func (v *Volumes) readGroup(group *volume.Group) (*work, error) {
	g := &groupCopy{id: group.ID}
	for _, member := range group.Members {
		c, err := v.readCopy(member)
		if err != nil {
			return nil, err
		}
		if c == nil {
			continue
		}
		source, err := v.volumes.records.Get(string(c.fromID))
		switch {
		case err != nil:
			return nil, err
		case source.Held == group.ID:
			g.held = append(g.held, c)
		default:
			g.used = append(g.used, c)
		}
	}
	if len(g.held)+len(g.used) == 0 {
		return nil, nil
	}
	return &work{parts: group.Members, run: func(ctx context.Context) error {
		if group.Whole {
			return nil
		}
		return v.copyGroup(ctx, g)
	}}, nil
}

// copyGroup makes the copies of a group: first those that do not have to be
// quick.
func (v *Volumes) copyGroup(ctx context.Context, g *groupCopy) error {
	for _, c := range g.held {
		if err := v.makeCopy(ctx, c); err != nil {
			return err
		}
	}
	if len(g.used) == 0 {
		return nil
	}
	k := &cut{Volumes: v, stamps: v.copyPath(g.id, "progress"), used: g.used}
	if err := k.make(ctx); err != nil {
		if slices.ContainsFunc(g.used, func(c *contentsCopy) bool { return gone(c.to.Path(c.id)) }) {
			err = errors.Join(volume.ErrNotFound, err) // another process has deleted it
		}
		return fmt.Errorf("group %q: %w", g.id, err)
	}
	klog.FromContext(ctx).V(2).Info("Copied volumes in use at one moment", logging.KeyGroupID, g.id, logging.KeyCount, len(g.used))
	return nil
}

// cut is an attempt to copy volumes in use at one moment.
type cut struct {
	*Volumes

	used   []*contentsCopy
	marked map[string]copier.Stamp // by the volume
	stamps string                  // the file of what is marked
	saved  bool                    // that file is there
	shared []*contentsCopy         // copies that are not durable yet
}

// make is an ErrConcurrentWrite when somebody has written meanwhile.
func (k *cut) make(ctx context.Context) error {
	if err := k.begin(ctx); err != nil {
		return err
	}
	for _, c := range k.used {
		if err := k.copy(ctx, c); err != nil {
			return err
		}
	}
	if err := k.prove(ctx); err != nil {
		return err
	}
	for _, c := range k.shared {
		k.cfg.Step.at("cut:sync")
		if err := copier.Sync(c.to.Disk(c.id)); err != nil {
			return exhausted(err)
		}
		if err := c.to.Resize(c.id, c.toForm, c.size); err != nil {
			return exhausted(err)
		}
	}
	return nil
}

// begin goes on with an attempt that may still succeed, or with a new one.
func (k *cut) begin(ctx context.Context) error {
	k.marked = copier.LoadStamps(k.stamps)
	err := k.prove(ctx)
	if k.saved = err == nil; k.saved || !errors.Is(err, volume.ErrConcurrentWrite) {
		return err
	}
	if err := copier.Forget(k.stamps); err != nil {
		return err
	}
	for _, c := range k.used {
		if err := k.forget(c); err != nil {
			return err
		}
	}
	return k.mark(ctx)
}

// forget removes what an earlier attempt has copied, unless it is overwritten.
func (k *cut) forget(c *contentsCopy) error {
	if err := copier.Forget(k.copyPath(c.id, "progress")); err != nil || c.toForm.Disk {
		return err
	}
	entries, err := os.ReadDir(c.to.Path(c.id))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(c.to.Path(c.id), entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

// mark takes the stamps, of all volumes before the first is copied. What is
// in memory of a disk is written out before, as a copy that shares blocks would
// do: that takes time, in which others write.
func (k *cut) mark(ctx context.Context) error {
	for _, c := range k.used {
		if !c.toForm.Disk {
			continue
		}
		if err := copier.Sync(c.from.Disk(c.fromID)); err != nil {
			return err
		}
	}
	// So often the clock of the kernel is waited for, and not for somebody who
	// writes without a pause.
	const most = 10
	for tries := 0; ; tries++ {
		restless, err := k.markOnce(ctx)
		if err != nil || restless == nil {
			return err
		}
		if tries == most {
			return unsteady(restless)
		}
		select {
		case <-time.After(copier.Tick()):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// markOnce returns a volume that was written to just now, if there is one.
func (k *cut) markOnce(ctx context.Context) (restless *contentsCopy, err error) {
	k.marked = map[string]copier.Stamp{}
	for _, c := range k.used {
		stamp, steady, err := copier.Mark(ctx, c.origin())
		if err != nil {
			return nil, untold(c, err)
		}
		k.marked[string(c.fromID)] = stamp
		if !steady {
			restless = c
		}
	}
	return restless, nil
}

// copy makes one copy, as quickly as that can be. One that takes long goes on
// after a crash, if nobody has written until then.
func (k *cut) copy(ctx context.Context, c *contentsCopy) error {
	if !k.saved {
		shared, err := k.share(c)
		if err != nil || shared {
			return err
		}
		if err := copier.SaveStamps(k.stamps, k.marked, k.cfg.Step); err != nil {
			return exhausted(err)
		}
		k.saved = true
	}
	if err := k.prove(ctx); err != nil { // nothing is copied in vain
		return err
	}
	err := k.makeCopy(ctx, c)
	if err == nil || errors.Is(err, volume.ErrExhausted) {
		return err
	}
	if changed := k.prove(ctx); errors.Is(changed, volume.ErrConcurrentWrite) {
		return changed // which is why
	}
	return err
}

// share makes a copy that takes no time, if there can be one.
func (k *cut) share(c *contentsCopy) (bool, error) {
	if !c.toForm.Disk {
		return false, nil
	}
	if blank, err := c.makeBlank(); err != nil || blank {
		return blank, err
	}
	shared, err := copier.Share(c.from.Disk(c.fromID), c.to.Disk(c.id), k.cfg.Step)
	if shared {
		k.shared = append(k.shared, c)
	}
	return shared, exhausted(err)
}

// prove reports whether nobody has written since the stamps were taken. If not,
// or if there are none, the error is an ErrConcurrentWrite.
func (k *cut) prove(ctx context.Context) error {
	for _, c := range k.used {
		before, marked := k.marked[string(c.fromID)]
		if !marked {
			return unsteady(c)
		}
		now, err := copier.Look(ctx, c.origin())
		if err != nil {
			return err
		}
		if now != before {
			return unsteady(c)
		}
	}
	return nil
}

// origin is the path of what is copied.
func (c *contentsCopy) origin() string { return c.from.Place(c.fromID, c.toForm) }

// unsteady says what to do about a volume that does not hold still.
func unsteady(c *contentsCopy) error {
	instead := "keep volumes on XFS with reflink or btrfs, where a copy takes no time"
	if !c.toForm.Disk {
		instead = "make it an image on a disk that can share blocks"
	}
	return fmt.Errorf("volume %q is written to all the time, so that a snapshot of it would not be of the same moment as those of the others; stop its users, or %s: %w",
		c.fromID, instead, volume.ErrConcurrentWrite)
}

// untold says what to do about a volume of which nobody knows when it is
// written to.
func untold(c *contentsCopy, err error) error {
	if !errors.Is(err, copier.ErrUntold) {
		return err
	}
	return fmt.Errorf("volume %q is in use, and it cannot be found out whether a snapshot of it is of the same moment as those of the others; stop its users: %w: %w",
		c.fromID, err, volume.ErrPrecondition)
}
