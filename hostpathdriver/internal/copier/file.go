package copier

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// File copies a regular file: its data, its holes and its size, no attributes.
// The destination is made with mode 0600 if it does not exist; one that exists
// is overwritten, and becomes as small as the source. Its directory must
// exist. At return the copy is on disk. What is in the cache of a loop device
// and not in the source yet is not in the copy.
//
// A copy is resumed if the progress file is about the same two paths and the
// same two files (inode and time of birth), and the source has not become
// smaller. That the source was written to does not matter: an image in use
// would never be copied to the end. The source is taken as it is now from
// there on.
//
// The error wraps fs.ErrNotExist if the destination was removed or renamed
// meanwhile, and the context's if that ended; what is done then is kept.
func File(ctx context.Context, from, to string, o Options) (Result, error) {
	result, err := copyFile(ctx, from, to, o)
	if err != nil {
		return result, fmt.Errorf("copy file %s to %s: %w", from, to, err)
	}
	return result, nil
}

func copyFile(ctx context.Context, from, to string, o Options) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	o.limits = o.limits.orDefaults()
	j := &job{Options: o, to: to}
	source, target, err := j.open(from)
	if err != nil {
		return Result{}, err
	}
	defer source.Close()
	defer target.Close()
	of, err := newTask("file", from, to, source, target)
	if err != nil {
		return Result{}, err
	}
	err = j.copyContents(ctx, source, target, of)
	return j.result, err
}

// open opens the two files, of which the destination is made.
func (j *job) open(from string) (source, target *os.File, err error) {
	source, info, err := openRegular(from, os.O_RDONLY)
	if err != nil {
		return nil, nil, err
	}
	j.step("create")
	target, j.opened, err = openRegular(j.to, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, nil, errors.Join(err, source.Close())
	}
	if os.SameFile(info, j.opened) {
		err = errors.New("they are the same file")
		return nil, nil, errors.Join(err, source.Close(), target.Close())
	}
	return source, target, nil
}

// Share makes the destination share all blocks with the source, as it is at one
// moment, and reports whether the file systems can. It is as quick as that can be:
// only Sync makes it durable, and there is no progress to remember.
func Share(from, to string, step func(name string)) (shared bool, err error) {
	j := &job{Options: Options{Step: step}, to: to}
	source, target, err := j.open(from)
	if err == nil {
		defer source.Close()
		defer target.Close()
		var t *transfer
		if t, err = j.newTransfer(source, target, extent{}); err == nil {
			return t.shared, nil
		}
	}
	return false, fmt.Errorf("share the blocks of %s with %s: %w", from, to, err)
}

// Sync makes a file and its name durable.
func Sync(path string) error {
	file, _, err := openRegular(path, os.O_RDONLY)
	if err == nil {
		err = errors.Join(file.Sync(), file.Close(), syncDir(filepath.Dir(path)))
	}
	if err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	return nil
}

func (j *job) copyContents(ctx context.Context, source, target *os.File, of task) error {
	done := load(j.Progress, of)
	if done.Complete {
		j.result.Reflinked, j.result.Torn = done.Reflinked, done.Torn
		return nil
	}
	t, err := j.newTransfer(source, target, done.File)
	if err != nil {
		return err
	}
	sync := func(complete bool) error {
		j.step("sync")
		if err := target.Sync(); err != nil {
			return err
		}
		j.step("sync directory")
		if err := syncDir(filepath.Dir(j.to)); err != nil || j.Progress == "" {
			return err
		}
		return j.remember(&progress{Task: of, Complete: complete, Passed: j.passed, File: t.extent})
	}
	j.checkpoint = func() error { return sync(false) }
	if err := j.stop(ctx, t.run(ctx)); err != nil {
		return err
	}
	if err := j.present(); err != nil {
		return err
	}
	return sync(true)
}

// openRegular does not wait for the other end of a named pipe.
func openRegular(path string, flags int) (*os.File, os.FileInfo, error) {
	file, err := os.OpenFile(path, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", path)
	}
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return file, info, nil
}
