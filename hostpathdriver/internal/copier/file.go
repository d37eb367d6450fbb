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
	source, info, err := openRegular(from, os.O_RDONLY)
	if err != nil {
		return Result{}, err
	}
	defer source.Close()
	j.step("create")
	target, targetInfo, err := openRegular(to, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return Result{}, err
	}
	defer target.Close()
	if os.SameFile(info, targetInfo) {
		return Result{}, errors.New("they are the same file")
	}
	j.opened = targetInfo
	of, err := newTask("file", from, to, source, target)
	if err != nil {
		return Result{}, err
	}
	err = j.copyContents(ctx, source, target, of)
	return j.result, err
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
