package driverkit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/mount"
)

const (
	// undoTimeout bounds the undoing of a failed call, which must happen although the call's own context may be over.
	undoTimeout = 10 * time.Second
	// defaultFSType is the file system of a device for which neither CO nor driver name one.
	defaultFSType = "ext4"
)

// stage makes a volume available at its staging path. The journal has it first, so that the mount is known however the call ends.
func (n *node) stage(ctx context.Context, req *StageRequest) error {
	known := n.journal.get(req.ID)
	if known.Stage != nil {
		if err := n.background.Wait(ctx, known.Stage.work(req.ID)); err != nil { // begun by an earlier call
			return n.failed(ctx, known, err)
		}
	}
	done, err := n.alreadyStaged(ctx, known, req)
	switch {
	case err != nil:
		return err
	case done && known.Stage.Staged.Device != "":
		return n.mount(ctx, req, known.Stage) // The process that mounted it may have ended before the file system had its size.
	case done:
		return nil
	}
	before := known.clone()
	known.Stage = n.newStage(req)
	if err := n.journal.save(known); err != nil {
		return errors.Join(err, n.journal.save(before))
	}
	if err = n.present(ctx, req, known.Stage, func() error { return n.journal.save(known) }); err == nil {
		return nil
	}
	return n.failed(ctx, known, err)
}

// failed undoes a stage that failed with a cause, unless targets use it, or the cause is that its work goes on.
func (n *node) failed(ctx context.Context, known *record, cause error) error {
	if errors.Is(cause, ErrRunning) {
		return cause
	}
	if living, err := n.living(context.WithoutCancel(ctx), known); len(living) > 0 || err != nil {
		return fmt.Errorf("%w: volume %q stays staged, as %q use it: %w", cause, known.ID, living, errors.Join(err, ErrBusy))
	}
	return n.undo(ctx, known.ID, known.Stage, cause, func(context.Context) error {
		known.Stage, known.Targets = nil, nil // no target is mounted
		return n.journal.save(known)
	})
}

// work is the key of the work in the background that mounts a stage, or lets its file system grow.
func (s *stage) work(id string) string { return fmt.Sprintf("volume %q at %s", id, s.Path) }

// alreadyStaged reports whether a volume is staged as requested and its mount still exists. The driver is asked again for the device of a raw block
// volume, whose name the kernel may have given to another device since.
func (n *node) alreadyStaged(ctx context.Context, known *record, req *StageRequest) (bool, error) {
	if known.Stage == nil {
		return false, nil
	}
	staged, err := n.stillStaged(ctx, known.Stage)
	if err != nil {
		return false, err
	}
	contradiction := known.Stage.contradiction(req)
	broken := false
	if contradiction == nil {
		broken, err = n.repairable(ctx, known, staged)
		if err != nil || !broken {
			return staged && !known.Stage.Capability.Block, err
		}
	}
	living, err := n.living(ctx, known)
	if staged && !broken || len(living) > 0 || err != nil {
		return false, errors.Join(contradiction, err)
	}
	// The other stage was interrupted, or is of before a restart of the machine; or its file system became read-only, and the next mount checks it.
	if err := n.release(ctx, req.ID, known.Stage); err != nil {
		return false, fmt.Errorf("undo an earlier stage of volume %q at %s: %w: %w", req.ID, known.Stage.Path, ErrBusy, err)
	}
	known.Stage, known.Targets = nil, nil
	return false, n.journal.save(known)
}

// repairable reports whether the file system of a staged device became read-only. An ErrPrecondition says that targets use it.
func (n *node) repairable(ctx context.Context, known *record, staged bool) (bool, error) {
	if !staged || known.Stage.Staged.Device == "" {
		return false, nil // The file system of a directory is not the kit's to repair: a publication is refused.
	}
	broken, err := n.becameReadOnly(ctx, known.Stage)
	if err != nil || !broken {
		return false, err
	}
	living, err := n.living(ctx, known)
	if err == nil && len(living) > 0 {
		err = n.checkWritable(ctx, known.ID, known.Stage)
	}
	return true, err
}

// becameReadOnly reports whether the file system at the path of a stage refuses writes although it was mounted for writing: the kernel makes it read-only
// after an error. A mount that the driver made itself is the driver's to check.
func (n *node) becameReadOnly(ctx context.Context, s *stage) (bool, error) {
	if s.Capability.Block || s.Staged.Mounted || s.readOnly() {
		return false, nil
	}
	return n.Mounter.ReadOnly(ctx, s.Path)
}

// checkWritable refuses to use a file system that became read-only, with ErrPrecondition.
func (n *node) checkWritable(ctx context.Context, id string, s *stage) error {
	broken, err := n.becameReadOnly(ctx, s)
	if err == nil && broken {
		err = fmt.Errorf("volume %q: %s; stop all pods that use the volume on this node, so that it is unpublished and staged again: %w", id, s.readOnlyMessage(), ErrPrecondition)
	}
	return err
}

// readOnlyMessage describes a file system that became read-only.
func (s *stage) readOnlyMessage() string {
	return "the file system at " + s.Path + " became read-only, as the kernel makes it after an error (see its log)"
}

// contradiction says why a request is not for this stage: a volume is staged at one path and in one way (CSI v1.13, "NodeStageVolume", ALREADY_EXISTS).
func (s *stage) contradiction(req *StageRequest) error {
	switch {
	case s.Path != req.Path:
		return fmt.Errorf("volume %q is staged at %q, not at %q: %w", req.ID, s.Path, req.Path, ErrPrecondition)
	case !s.Capability.equal(req.Capability):
		return fmt.Errorf("volume %q is staged at %q with another volume_capability: %w", req.ID, req.Path, ErrExists)
	}
	return nil
}

func (n *node) newStage(req *StageRequest) *stage {
	return &stage{
		Path: req.Path, Capability: req.Capability, ReadOnly: req.ReadOnly, Boot: n.journal.boot,
		VolumeContext: ownContext(req.VolumeContext), PublishContext: req.PublishContext,
	}
}

// present asks the driver for the volume, has save note its answer in the journal, and mounts.
func (n *node) present(ctx context.Context, req *StageRequest, s *stage, save func() error) error {
	if !s.Capability.Block {
		if err := os.MkdirAll(s.Path, 0o750); err != nil {
			return fmt.Errorf("create directory to mount at: %w", err)
		}
	}
	n.at(ctx, "recorded")
	staged, err := n.driver.Stager.Stage(ctx, req)
	if err != nil {
		return err
	}
	if err := staged.check(s.Capability); err != nil {
		return err
	}
	n.at(ctx, "staged")
	if s.Staged = staged; staged.Device != "" {
		if s.Device, err = identify(staged.Device); err != nil {
			return fmt.Errorf("stage: the driver returned a device that cannot be used: %w", err)
		}
	}
	if err := save(); err != nil {
		return err
	}
	n.at(ctx, "noted")
	return n.mount(ctx, req, s)
}

// check reports whether a driver's answer is one of the forms. The error is INTERNAL: the driver breaks its contract.
func (s *Staged) check(c Capability) error {
	switch {
	case s.forms() != 1:
		return fmt.Errorf("stage: the driver returned %+v: must have one of Device, Directory and Mounted", s)
	case c.Block && s.Device == "":
		return errors.New("stage: the driver returned no Device for a raw block volume")
	case s.Device != "" && !c.Block && c.MultiNode() && !c.ReadOnly():
		return fmt.Errorf("volume_capability.access_mode: %s: the file system of a device can be mounted for writing on one node: %w", c.Mode, ErrInvalid)
	case !s.Mounted && !filepath.IsAbs(s.Device+s.Directory):
		return fmt.Errorf("stage: the driver returned %q: must be an absolute path", s.Device+s.Directory)
	}
	return nil
}

// forms is how many forms are set.
func (s *Staged) forms() (n int) {
	if s == nil {
		return 0
	}
	for _, set := range []bool{s.Device != "", s.Directory != "", s.Mounted} {
		if set {
			n++
		}
	}
	return n
}

// mount brings a staged volume to its path. A raw block volume is not mounted there: it is published from its device. An ErrRunning says that the file system is still being made, checked or
// grown.
func (n *node) mount(ctx context.Context, req *StageRequest, s *stage) error {
	switch {
	case s.Capability.Block:
		return nil
	case s.Staged.Device != "":
		return n.background.Do(ctx, s.work(req.ID), func(ctx context.Context) error {
			return n.Filesystems.Mount(ctx, s.Staged.Device, s.Path, filesystem.Options{
				Type: cmp.Or(s.Capability.FSType, s.Staged.FSType, defaultFSType), Flags: slices.Concat(req.Capability.MountFlags, s.Staged.MountFlags), ReadOnly: s.readOnly(),
				Grow: true, Formatted: s.Staged.Formatted, FormatOptions: s.Staged.FormatOptions,
			})
		})
	case s.Staged.Directory != "":
		if slices.ContainsFunc(req.Capability.MountFlags, filesystem.IsContext) {
			return fmt.Errorf("volume_capability.mount.mount_flags: a directory cannot be mounted with an SELinux context of its own; set seLinuxMount: false in the CSIDriver: %w", ErrInvalid)
		}
		return mount.EnsureBind(ctx, n.Mounter, s.Staged.Directory, s.Path, s.bindOptions())
	}
	mounted, err := n.Mounter.Mounted(ctx, s.Path)
	if err == nil && !mounted {
		err = fmt.Errorf("stage: the driver returned Mounted, but nothing is mounted at %s", s.Path)
	}
	if err != nil || !s.ReadOnly {
		return err
	}
	readOnly, err := n.Mounter.ReadOnly(ctx, s.Path)
	if err == nil && !readOnly {
		err = fmt.Errorf("stage: the driver mounted %s for writing although StageRequest.ReadOnly is set", s.Path)
	}
	return err
}

// readOnly reports whether a device is mounted read-only, as the CO or the driver says.
func (s *stage) readOnly() bool {
	return s.ReadOnly || s.Staged.ReadOnly || slices.Contains(s.Capability.MountFlags, "ro")
}

// bindOptions are those of the bind mount of a directory: of the requested flags, those that a bind mount can have.
func (s *stage) bindOptions() mount.Options {
	return mount.Options{ReadOnly: s.ReadOnly || s.Staged.ReadOnly, Flags: bindFlags(s.Capability.MountFlags)}
}

// stillStaged reports whether a stage is complete and its mount or device still exists, also if the file system became read-only.
func (n *node) stillStaged(ctx context.Context, s *stage) (bool, error) {
	if s.Staged == nil || s.Boot != n.journal.boot {
		return false, nil
	}
	switch {
	case s.Capability.Block:
		return s.Device.isOf(s.Staged.Device)
	case s.Staged.Device != "":
		shown, readOnly, err := n.Filesystems.IsMountOf(ctx, s.Staged.Device, s.Path)
		return shown && (readOnly || !s.readOnly()), err
	case s.Staged.Directory != "":
		return n.Mounter.IsMountOf(ctx, s.Staged.Directory, s.Path, s.bindOptions())
	}
	return n.Mounter.Mounted(ctx, s.Path)
}

// undo undoes a stage that failed with a cause, and has forget remove it from the journal only when that succeeded, so that NodeUnstageVolume knows the
// rest: the ErrBusy then says that the outcome is not final.
func (n *node) undo(ctx context.Context, id string, s *stage, cause error, forget func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	err := n.join(ctx, id, s)
	if err == nil && !errors.Is(cause, mount.ErrOccupied) { // The mount that is in the way is not this one.
		err = n.unmount(ctx, id, s)
	}
	if err == nil {
		err = n.unstageDriver(ctx, id, s)
	}
	if err == nil {
		err = forget(ctx)
	}
	if err != nil {
		err = fmt.Errorf("undo the stage of volume %q at %s: %w: %w", id, s.Path, ErrBusy, err)
	}
	return errors.Join(cause, err)
}

// join waits until no work of a stage goes on. An ErrRunning says that it does; any other error of it does not matter to what undoes the stage.
func (n *node) join(ctx context.Context, id string, s *stage) error {
	err := n.background.Wait(ctx, s.work(id))
	if errors.Is(err, ErrRunning) {
		return err
	}
	if err != nil {
		klog.FromContext(ctx).Info("Work for which no call has waited had failed", logging.KeyReason, err.Error())
	}
	return nil
}

// release unmounts a stage and has the driver undo it.
func (n *node) release(ctx context.Context, id string, s *stage) error {
	if err := n.join(ctx, id, s); err != nil {
		return err
	}
	if err := n.unmount(ctx, id, s); err != nil {
		return err
	}
	n.at(ctx, "unmounted")
	return n.unstageDriver(ctx, id, s)
}

// unmount undoes all mounts at the path of a stage. One that the driver has made itself is the driver's to unmount, if it has a way of its own.
func (n *node) unmount(ctx context.Context, id string, s *stage) error {
	if n.driver.Unmount != nil && (s.Staged == nil || s.Staged.Mounted) {
		mounted, err := n.Mounter.Mounted(ctx, s.Path)
		if err == nil && mounted {
			err = n.driver.Unmount(ctx, &MountRequest{ID: id, Path: s.Path})
		}
		if err != nil {
			return err
		}
	}
	return mount.UnmountAll(ctx, n.Mounter, s.Path)
}

// unstageDriver has the driver undo a stage, of which nothing is mounted any more.
func (n *node) unstageDriver(ctx context.Context, id string, s *stage) error {
	req := &UnstageRequest{ID: id, Path: s.Path, VolumeContext: s.VolumeContext, PublishContext: s.PublishContext}
	if s.Boot == n.journal.boot {
		req.Staged = s.Staged
	}
	if err := n.checkUnused(ctx, id, s, req.Staged); err != nil {
		return err
	}
	return n.driver.Stager.Unstage(ctx, req)
}

// checkUnused refuses to give up a device whose file system is still mounted somewhere, with an ErrInUse: the journal may not know all targets, such as those of a driver that this one has replaced.
func (n *node) checkUnused(ctx context.Context, id string, s *stage, staged *Staged) error {
	if staged == nil || staged.Device == "" || s.Capability.Block {
		return nil
	}
	if same, err := s.Device.isOf(staged.Device); err != nil || !same {
		return err
	}
	used, err := n.Mounter.Uses(ctx, staged.Device)
	if err == nil && used {
		err = fmt.Errorf("volume %q: the file system of %s is still mounted elsewhere on this node (findmnt --source %[2]s): %w", id, staged.Device, ErrInUse)
	}
	return err
}

// unstage undoes stage. A volume that the journal does not know, because another driver staged it or its record was lost, is unmounted and unstaged, too.
func (n *node) unstage(ctx context.Context, id, path string) error {
	known := n.journal.get(id)
	if known.Stage == nil || known.Stage.Path != path { // Here may be what an earlier driver mounted.
		if err := n.checkOwner(ctx, id, path); err != nil {
			return err
		}
	}
	if known.Stage != nil && known.Stage.Path != path {
		return mount.UnmountAll(ctx, n.Mounter, path)
	}
	if err := n.checkUnpublished(ctx, known); err != nil {
		return err
	}
	if known.Stage == nil {
		if err := n.findForUnstage(ctx, known, path); err != nil {
			return err
		}
	}
	if err := n.release(ctx, id, known.Stage); err != nil {
		return err
	}
	n.at(ctx, "unstaged")
	known.Stage, known.Targets = nil, nil
	return n.journal.save(known)
}

// checkOwner refuses to unmount at a path that the journal does not know, with ErrPrecondition, where the driver says that the mount is not the volume's.
func (n *node) checkOwner(ctx context.Context, id, path string) error {
	if n.driver.OwnsMount == nil {
		return nil
	}
	mounted, err := n.Mounter.Mounted(ctx, path)
	if err != nil || !mounted {
		return err
	}
	own, err := n.driver.OwnsMount(ctx, &MountRequest{ID: id, Path: path})
	if err == nil && !own {
		err = fmt.Errorf("volume %q: something else is mounted at %q; unmount it by hand if nothing uses it: %w", id, path, ErrPrecondition)
	}
	return err
}

// checkUnpublished refuses to unstage a volume that is still published, with ErrInUse. Targets that are not mounted any more do not count.
func (n *node) checkUnpublished(ctx context.Context, known *record) error {
	living, err := n.living(ctx, known)
	if err == nil && len(living) > 0 {
		err = fmt.Errorf("volume %q is published at %s: %w", known.ID, strings.Join(living, ", "), ErrInUse)
	}
	return err
}

// living returns the target paths that are still mounted.
func (n *node) living(ctx context.Context, known *record) ([]string, error) {
	var paths []string
	for _, t := range known.Targets {
		mounted, err := n.Mounter.Mounted(ctx, t.Path)
		if err != nil {
			return nil, err
		}
		if mounted {
			paths = append(paths, t.Path)
		}
	}
	return paths, nil
}
