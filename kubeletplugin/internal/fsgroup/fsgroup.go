package fsgroup

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Permissions that each file gets, and those that a directory gets besides.
const (
	filePermissions      = 0o660
	directoryPermissions = 0o110 | unix.S_ISGID
)

// Change says which files get which group.
type Change struct {
	// Path is where the volume is mounted.
	Path string
	// Group is the ID of the group.
	Group int64
	// OnRootMismatch skips a volume whose root directory already has the group and its permissions. The root is changed last,
	// so a change that was interrupted is not mistaken for a complete one.
	OnRootMismatch bool
}

// Result is what a change has done.
type Result struct {
	// Skipped is true if the root directory was right already, by OnRootMismatch.
	Skipped bool
	// Refused counts the files whose group or permissions the file system does not let be changed.
	Refused int64
	// Refusal is the error for the first of them.
	Refusal error
}

// Apply changes the files below a path, and counts in files those that it has passed. It does not leave the mount: what is mounted
// below the path stays unchanged. Files that are deleted meanwhile are no error.
//
// A file system that does not know groups, or grants nothing to root, refuses each change, and a volume may have single
// immutable files. As in a kubelet, this is no error; see Result. Any other failure ends the walk with an error that names the file.
func Apply(ctx context.Context, c Change, files *atomic.Int64) (Result, error) {
	return (&walk{change: c, files: files, chown: chown, chmod: chmod}).run(ctx)
}

// walk is one change in progress.
type walk struct {
	change Change
	files  *atomic.Int64
	mount  mount
	result Result

	chown func(f *file, group int) error
	chmod func(f *file, mode uint32) error
}

func (w *walk) run(ctx context.Context) (Result, error) {
	if w.change.Group < 0 || w.change.Group >= math.MaxUint32 {
		return Result{}, fmt.Errorf("group %d is no ID of a group", w.change.Group)
	}
	root, err := open(unix.AT_FDCWD, w.change.Path, w.change.Path)
	if err != nil {
		return Result{}, err
	}
	defer root.close()
	if w.change.OnRootMismatch && w.matches(root) {
		return Result{Skipped: true}, nil
	}
	w.mount = root.mount()
	err = w.tree(ctx, root)
	return w.result, err
}

// matches reports whether the root directory has the group and the permissions of a volume that was changed.
func (w *walk) matches(root *file) bool {
	return root.isDirectory() && w.hasGroup(root) && wanted(root.mode()) == root.mode()
}

// tree changes the files of a directory, and then the directory itself.
func (w *walk) tree(ctx context.Context, f *file) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("stopped at %q: %w", f.path, err)
	}
	if f.isDirectory() {
		err := f.children(func(child *file) error {
			if child.mount() != w.mount {
				return nil
			}
			return w.tree(ctx, child)
		})
		if err != nil {
			return err
		}
	}
	w.files.Add(1)
	return w.one(f)
}

// one changes a single file.
func (w *walk) one(f *file) error {
	mode := wanted(f.mode())
	if w.hasGroup(f) {
		if f.isLink() || mode == f.mode() {
			return nil
		}
	} else if err := w.check(f, "group", w.chown(f, int(w.change.Group))); err != nil || f.isLink() {
		return err
	}
	// The permissions are set also if they are right: a change of the group has cleared setuid and setgid of programs.
	return w.check(f, "permissions", w.chmod(f, mode))
}

// check records a change that the file system refuses; any other error is returned.
func (w *walk) check(f *file, what string, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("change %s of %q: %w", what, f.path, err)
	if !refused(err) {
		return err
	}
	if w.result.Refusal == nil {
		w.result.Refusal = err
	}
	w.result.Refused++
	return nil
}

// refused reports whether an error is the file system's answer that the change is not possible, today or tomorrow.
func refused(err error) bool {
	for _, final := range []unix.Errno{unix.EPERM, unix.EACCES, unix.EROFS, unix.EINVAL, unix.EOPNOTSUPP, unix.ENOSYS} {
		if errors.Is(err, final) {
			return true
		}
	}
	return false
}

func (w *walk) hasGroup(f *file) bool { return int64(f.stat.Gid) == w.change.Group }

// wanted is the mode of a file after the change. Permissions are only added.
func wanted(mode uint32) uint32 {
	if mode&unix.S_IFMT == unix.S_IFDIR {
		mode |= directoryPermissions
	}
	return mode | filePermissions
}
