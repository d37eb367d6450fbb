package backend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/contents"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// preparation is the key of a preparation in the background.
func preparation(id string) string { return fmt.Sprintf("image of volume %q", id) }

// prepare completes the file system of an image before it is used: a new one is made, and gets owner and mode; the copy of one is mounted for writing once,
// which replays its journal. It happens at a path of the driver's own, so that no workload sees what is not complete.
func (n *Node) prepare(ctx context.Context, u *use, p volume.Parameters) (err error) {
	store := n.contents(u)
	if _, pending, err := store.Unprepared(u.ID); err != nil || !pending {
		return err
	}
	unlock, err := store.LockPreparation(u.ID)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	blank, pending, err := store.Unprepared(u.ID)
	if err != nil || !pending { // Another node has prepared it since.
		return err
	}
	if err := n.makeFilesystem(ctx, u, blank, p); err != nil {
		return err
	}
	n.cfg.Step.at("prepare:done")
	if err := store.Prepared(u.ID); err != nil || !u.ReadOnly {
		return err
	}
	return n.detach(ctx, u)
}

// makeFilesystem makes the file system of a disk if it is blank, and mounts it for writing once.
func (n *Node) makeFilesystem(ctx context.Context, u *use, blank bool, p volume.Parameters) error {
	path := filepath.Join(n.dir, prepareDir, u.ID)
	if err := n.unmount(ctx, path); err != nil {
		return err
	}
	if blank { // What an interrupted attempt left has no user.
		if err := n.wipe(ctx, u); err != nil {
			return err
		}
	}
	device, err := n.cfg.Devices.Attach(ctx, n.disk(u), false)
	if err != nil {
		return err
	}
	return n.mountOnce(ctx, u, device, path, !blank, func() error {
		if !blank && !p.Owned {
			return nil
		}
		return contents.Own(path, p)
	})
}

// wipe makes the disk of a volume one of zeros again.
func (n *Node) wipe(ctx context.Context, u *use) error {
	size, err := n.size(u)
	if err == nil {
		err = n.detach(ctx, u)
	}
	if err != nil {
		return err
	}
	if err := n.contents(u).Wipe(u.ID, size); err != nil {
		return err
	}
	if size, err = n.size(u); err != nil { // It may have been expanded meanwhile, by a process that found the larger file.
		return err
	}
	return n.contents(u).Grow(u.ID, u.Form, 0, size)
}

// mountOnce mounts a file system, changes it, and unmounts it, which makes the change durable.
func (n *Node) mountOnce(ctx context.Context, u *use, device, path string, formatted bool, change func() error) error {
	n.cfg.Step.at("prepare:mount")
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	err := n.cfg.Filesystems.Mount(ctx, device, path, filesystem.Options{Type: u.Form.FSType, Formatted: formatted})
	if err == nil {
		n.cfg.Step.at("prepare:change")
		err = change()
	}
	undo, cancel := withUndoTimeout(ctx)
	defer cancel()
	n.cfg.Step.at("prepare:unmount")
	return errors.Join(err, n.unmount(undo, path))
}

// unmount unmounts a file system that is being prepared.
func (n *Node) unmount(ctx context.Context, path string) error {
	if gone(path) {
		return nil
	}
	if err := mount.UnmountAll(ctx, n.cfg.Mounter, path); err != nil {
		return err
	}
	return os.Remove(path)
}

func (n *Node) unmountPreparations(ctx context.Context) error {
	entries, err := os.ReadDir(filepath.Join(n.dir, prepareDir))
	for _, entry := range entries {
		err = errors.Join(err, n.unmount(ctx, filepath.Join(n.dir, prepareDir, entry.Name())))
	}
	return err
}
