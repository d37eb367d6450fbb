package driverkit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/mount"
)

// publish mounts a staged volume at a target.
func (n *node) publish(ctx context.Context, want *target, req *StageRequest) error {
	known, err := n.stageForPublish(ctx, n.journal.get(req.ID), want, req)
	if err != nil {
		return err
	}
	if err := n.checkStaged(ctx, known, want); err != nil {
		return err
	}
	if err := n.checkTarget(ctx, known, want); err != nil {
		return err
	}
	before := known.clone()
	known.drop(want.Path)
	known.Targets = append(known.Targets, *want)
	if err := n.journal.save(known); err != nil {
		return errors.Join(err, n.journal.save(before))
	}
	n.at(ctx, "recorded")
	source, err := n.sourceOf(ctx, known.Stage, want, req)
	if err == nil {
		err = mount.EnsureBind(ctx, n.Mounter, source, want.Path, mount.Options{ReadOnly: want.ReadOnly, Flags: bindFlags(want.Capability.MountFlags)})
	}
	if before.at(want.Path) != nil {
		if err == nil {
			err = n.republish(ctx, req)
		}
		return err
	}
	if err == nil {
		return nil
	}
	return n.undoPublish(ctx, before, want.Path, err)
}

// sourceOf returns what is mounted at a target: the staging path, or a device. A second device that refuses writes belongs to the stage, which the journal
// has: Stager.Unstage removes it.
func (n *node) sourceOf(ctx context.Context, s *stage, want *target, req *StageRequest) (string, error) {
	switch {
	case !want.Capability.Block:
		return s.Path, nil
	case !s.needsReadOnlyDevice(want):
		return s.Staged.Device, nil
	}
	again := *req
	again.Path, again.ReadOnly = s.Path, true
	second, err := n.driver.ReadOnlyDevice(ctx, &again)
	n.at(ctx, "readonly-device")
	if err != nil {
		return "", err
	}
	device := valueOf(second).Device
	if !filepath.IsAbs(device) {
		return "", fmt.Errorf("read-only device: the driver returned %q: must be an absolute path", device)
	}
	return device, nil
}

// needsReadOnlyDevice reports whether the device of the stage can be written, and the target must not.
func (s *stage) needsReadOnlyDevice(want *target) bool {
	return want.Capability.Block && want.ReadOnly && s.Staged != nil && !s.Staged.ReadOnly
}

// undoPublish undoes a publication that failed with a cause. The target stays in the journal unless it is gone.
func (n *node) undoPublish(ctx context.Context, before *record, path string, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	var err error
	if !errors.Is(cause, mount.ErrOccupied) { // The mount that is in the way is not this one.
		err = mount.UnmountAll(ctx, n.Mounter, path)
	}
	if err == nil {
		err = n.journal.save(before)
	}
	if err != nil {
		err = fmt.Errorf("undo the publication of volume %q: %w: %w", before.ID, ErrBusy, err)
	}
	return errors.Join(cause, err)
}

// checkStaged refuses a volume that is staged in another way (CSI v1.13, "NodePublishVolume", FAILED_PRECONDITION).
func (n *node) checkStaged(ctx context.Context, known *record, want *target) error {
	if known.Stage.Capability.Block != want.Capability.Block {
		return fmt.Errorf("volume_capability.access_type: volume %q is staged with the other one: %w", known.ID, ErrPrecondition)
	}
	if known.Stage.needsReadOnlyDevice(want) && n.driver.ReadOnlyDevice == nil {
		// A read-only mount of a device's node does not keep anybody from writing to the device.
		return fmt.Errorf("readonly: volume %q is staged as a device that can be written: %w", known.ID, ErrInvalid)
	}
	return n.checkWritable(ctx, known.ID, known.Stage)
}

// checkTarget refuses another way at the same path, and another path where the access mode allows one
// (CSI v1.13, "NodePublishVolume", second table). Targets that are not mounted any more do not count.
func (n *node) checkTarget(ctx context.Context, known *record, want *target) error {
	if have := known.at(want.Path); have != nil {
		if have.ReadOnly != want.ReadOnly || have.Staging != want.Staging || !have.Capability.equal(want.Capability) {
			return fmt.Errorf("volume %q is published at %q with another capability, readonly flag or staging path: %w", known.ID, want.Path, ErrExists)
		}
		return nil
	}
	living, err := n.living(ctx, known)
	if err != nil {
		return err
	}
	for _, path := range living {
		if !known.at(path).Capability.manyTargets() || !want.Capability.manyTargets() {
			return fmt.Errorf("volume %q is published at %q, and access mode %s allows one path: %w", known.ID, path, want.Capability.Mode, ErrPrecondition)
		}
	}
	return nil
}

// publishUnstaged makes a volume available at a target without a stage: that of Support.PublishOnly, or an inline volume, which create makes.
func (n *node) publishUnstaged(ctx context.Context, want *target, req *StageRequest, create func(context.Context) error) error {
	known := n.journal.get(req.ID)
	if err := n.checkTarget(ctx, known, want); err != nil {
		return err
	}
	if err := known.at(want.Path).checkAttributes(req); err != nil {
		return err
	}
	if err := n.joinTarget(ctx, known, want.Path); err != nil {
		return err
	}
	if published, err := n.alreadyPublished(ctx, req.ID, known.at(want.Path)); err != nil {
		return err
	} else if published {
		return n.republish(ctx, req)
	}
	before := known.clone()
	known.drop(want.Path)
	want.Stage = n.newStage(req)
	known.Targets = append(known.Targets, *want)
	if err := n.journal.save(known); err != nil {
		return errors.Join(err, n.journal.save(before))
	}
	err := n.presentTarget(ctx, known, want, req, create)
	if err == nil {
		return nil
	}
	if have := before.at(want.Path); have != nil && have.Stage != nil && have.Stage.Staged != nil {
		return errors.Join(err, n.keepPublished(known, want, have))
	}
	if errors.Is(err, ErrRunning) {
		return err
	}
	return n.undoTarget(ctx, req.ID, want, before, err)
}

// republish hands a repeated publication to the driver: its tokens and secrets may be new.
func (n *node) republish(ctx context.Context, req *StageRequest) error {
	if n.driver.Republish == nil {
		return nil
	}
	return n.driver.Republish(ctx, req)
}

// joinTarget waits for the work of an earlier call for a target. When it has failed the target is undone, unless it is mounted.
func (n *node) joinTarget(ctx context.Context, known *record, path string) error {
	have := known.clone().at(path)
	if have == nil || have.Stage == nil {
		return nil
	}
	err := n.background.Wait(ctx, have.Stage.work(known.ID))
	if err == nil || errors.Is(err, ErrRunning) {
		return err
	}
	if mounted, mountedErr := n.Mounter.Mounted(ctx, path); mounted || mountedErr != nil {
		return errors.Join(err, mountedErr)
	}
	known.drop(path)
	return n.undoTarget(ctx, known.ID, have, known, err)
}

// checkAttributes refuses other attributes for an inline volume that is published at a target, which may be nil.
func (t *target) checkAttributes(req *StageRequest) error {
	if t == nil || !t.Inline || t.Stage == nil || maps.Equal(t.Stage.VolumeContext, ownContext(req.VolumeContext)) {
		return nil
	}
	return fmt.Errorf("inline volume %q is published at %q with other attributes: %w", req.ID, t.Path, ErrExists)
}

// presentTarget makes the volume of a target, if create is set, and has it visible there.
func (n *node) presentTarget(ctx context.Context, known *record, want *target, req *StageRequest, create func(context.Context) error) error {
	if create != nil {
		n.at(ctx, "inline")
		if err := create(ctx); err != nil {
			return err
		}
	}
	return n.present(ctx, req, want.Stage, func() error { return n.journal.save(known) })
}

// keepPublished leaves a target as it was when a repeated call failed: a workload may use it, and NodeUnpublishVolume undoes it.
func (n *node) keepPublished(known *record, want, have *target) error {
	if want.Stage.Staged == nil {
		want.Stage.Staged, want.Stage.Boot = have.Stage.Staged, have.Stage.Boot
	}
	return n.journal.save(known)
}

// alreadyPublished reports whether a target, which may be nil, still has its own stage. An ErrPrecondition says that its file system became read-only.
func (n *node) alreadyPublished(ctx context.Context, id string, have *target) (bool, error) {
	if have == nil || have.Stage == nil {
		return false, nil
	}
	published, err := n.stillStaged(ctx, have.Stage)
	if err == nil && published {
		err = n.checkWritable(ctx, id, have.Stage)
	}
	return published, err
}

// unpublish unmounts a target and removes its mount point.
func (n *node) unpublish(ctx context.Context, id, path string) error {
	known := n.journal.get(id)
	published := known.at(path)
	if err := n.unmountTarget(ctx, id, path, published); err != nil {
		return err
	}
	n.at(ctx, "unpublished")
	if err := removeMountPoint(path); err != nil {
		return fmt.Errorf("remove the mount point: %w", err)
	}
	if published != nil && published.Inline {
		if err := n.deleteInline(ctx, id); err != nil {
			return err
		}
	}
	known.drop(path)
	return n.journal.shrink(ctx, known)
}

// removeMountPoint removes an empty directory or file. Anything else at the path of a target was not made by the driver (CSI spec v1.13, "NodeUnpublishVolume").
func removeMountPoint(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return ignoreNotExist(err)
	}
	if !info.IsDir() && (!info.Mode().IsRegular() || info.Size() > 0) {
		return fmt.Errorf("%s is neither a directory nor an empty file, so that no driver has made it: look what it is, and remove it by hand", path)
	}
	return ignoreNotExist(os.Remove(path)) // a directory with files in it stays: they are not the driver's
}

// unmountTarget unmounts at the path of a target, which is nil where the journal does not know it, and has the driver undo the target's own stage.
func (n *node) unmountTarget(ctx context.Context, id, path string, published *target) error {
	if published == nil {
		if err := n.checkOwner(ctx, id, path); err != nil {
			return err
		}
	}
	switch {
	case published != nil && published.Stage != nil:
		return n.release(ctx, id, published.Stage)
	case n.Support.PublishOnly:
		return n.release(ctx, id, &stage{Path: path})
	}
	return mount.UnmountAll(ctx, n.Mounter, path)
}

// stats measures a volume at a staging or target path, or at another path that shows its device: kubelets ask for the statistics of a raw block volume at
// a mount of their own.
func (n *node) stats(ctx context.Context, id, path string) (*csi.NodeGetVolumeStatsResponse, error) {
	s, err := n.stageOf(ctx, n.journal.get(id), path)
	if err != nil {
		return nil, err
	}
	usage, err := n.usage(ctx, id, path, s)
	if err != nil {
		return nil, err
	}
	answer := &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{usageOf(csi.VolumeUsage_BYTES, usage.Bytes)}}
	if usage.Inodes != (filesystem.Space{}) {
		answer.Usage = append(answer.Usage, usageOf(csi.VolumeUsage_INODES, usage.Inodes))
	}
	return answer, nil
}

// showsDeviceAt reports whether a path is the node of the device of a raw block volume.
func (s *stage) showsDeviceAt(path string) bool {
	return s != nil && s.Capability.Block && s.Staged != nil && sameDevice(s.Staged.Device, path)
}

func usageOf(unit csi.VolumeUsage_Unit, s filesystem.Space) *csi.VolumeUsage {
	return &csi.VolumeUsage{Unit: unit, Total: s.Total, Used: s.Used, Available: s.Available}
}

// usage asks the driver, if it knows, else the device or the file system.
func (n *node) usage(ctx context.Context, id, path string, s *stage) (filesystem.Usage, error) {
	if n.driver.Usage != nil {
		known, err := n.driver.Usage(ctx, &UsageRequest{ID: id, Path: path, Staged: *s.Staged})
		if err != nil {
			return filesystem.Usage{}, err
		}
		if known != nil {
			return *known, nil
		}
	}
	if s.Capability.Block {
		if same, err := s.Device.isOf(s.Staged.Device); err != nil || !same {
			return filesystem.Usage{}, errors.Join(err, fmt.Errorf("volume %q: its device %s has gone, or is that of another volume now: %w", id, s.Staged.Device, ErrNotFound))
		}
		size, err := deviceSize(s.Staged.Device)
		return filesystem.Usage{Bytes: filesystem.Space{Total: size}}, err
	}
	return n.Filesystems.Usage(ctx, path)
}

// expand lets a volume have its new size: the device first, if the driver has work there, then the file system. It returns the new size; 0 where it is not known.
func (n *node) expand(ctx context.Context, req *NodeExpandRequest) (size int64, err error) {
	s, err := n.stageOf(ctx, n.journal.get(req.ID), req.Path)
	if err != nil {
		return 0, err
	}
	if err := n.background.Wait(ctx, s.work(req.ID)); err != nil {
		return 0, err
	}
	req.Staged, req.VolumeContext, req.PublishContext = *s.Staged, s.VolumeContext, s.PublishContext
	if n.driver.ExpandOnNode != nil {
		expanded, err := n.driver.ExpandOnNode(ctx, req)
		if err != nil {
			return 0, err
		}
		size = valueOf(expanded).Size
	}
	n.at(ctx, "expanded")
	if s.Staged.Device == "" || s.Capability.Block || s.readOnly() {
		return size, nil // A file system that is read-only here grows with its next mount for writing.
	}
	return size, n.background.Do(ctx, s.work(req.ID), func(ctx context.Context) error { return n.Filesystems.Grow(ctx, s.Staged.Device, s.Path) })
}

// bindFlags are the flags that a bind mount can have; the others are those of the file system.
func bindFlags(flags []string) []string {
	known := mount.Flags()
	return slices.DeleteFunc(slices.Clone(flags), func(f string) bool { return !slices.Contains(known, f) })
}

func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
