// Package mount makes, undoes and looks up bind mounts: the interface between a
// driver and the mount table of the kernel. File systems of devices are those of
// package filesystem.
//
// The kernel implementation uses system calls, not the mount and umount
// programs: nothing is forked, the image needs no util-linux, and a read-only
// mount is never writable, not even for a moment. Tests use Fake, which
// needs no privilege.
package mount

import (
	"context"
	"fmt"
	"slices"
)

// Options of a bind mount.
type Options struct {
	// ReadOnly makes the mount, not the source, read-only.
	ReadOnly bool
	// Flags are mount flags out of Flags(), without commas. A later flag wins over
	// an earlier one that contradicts it.
	Flags []string
}

// Mounter makes and undoes bind mounts. Paths are absolute.
type Mounter interface {
	// Bind mounts the directory source at the existing directory target, or
	// the file source, which may be a device, at the existing file target.
	// After an error nothing is mounted there. An unknown flag is an error. A
	// repeated call makes a second mount on top of the first: ask IsMountOf before.
	Bind(ctx context.Context, source, target string, o Options) error
	// Unmount undoes the topmost mount at target. No mount is no error. A mount
	// that stays in use is not undone: the error wraps unix.EBUSY.
	Unmount(ctx context.Context, target string) error
	// Mounted reports whether target is a mount point. A path that does not
	// exist is not one.
	Mounted(ctx context.Context, target string) (bool, error)
	// IsMountOf reports whether target is a mount of source, and a read-only one
	// if the options ask for that. A source that does not exist is no error.
	IsMountOf(ctx context.Context, source, target string, o Options) (bool, error)
	// Uses reports whether a file system of a device, or the node of the device,
	// is mounted anywhere.
	Uses(ctx context.Context, device string) (bool, error)
	// ReadOnly reports whether writes through the mount at target are refused:
	// because of its flags, or because its file system became read-only.
	ReadOnly(ctx context.Context, target string) (bool, error)
	// Below returns the mount points strictly below a directory, sorted.
	Below(ctx context.Context, dir string) ([]string, error)
}

const flagReadOnly = "ro"

// Flags returns the mount flags that a bind mount knows, sorted.
func Flags() []string {
	return []string{
		"dev", "diratime", "exec", "noatime", "nodev", "nodiratime", "noexec", "nosuid", "relatime", flagReadOnly, "rw", "strictatime", "suid",
	}
}

// check refuses flags that a bind mount does not know.
func (o Options) check() error {
	for _, flag := range o.Flags {
		if !slices.Contains(Flags(), flag) {
			return fmt.Errorf("mount flag %q: must be one of %v", flag, Flags())
		}
	}
	return nil
}

// readOnly reports whether the options ask for a read-only mount, by ReadOnly or
// by a flag.
func (o Options) readOnly() bool {
	return o.ReadOnly || slices.Contains(o.Flags, flagReadOnly)
}
