package copier

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

func (j *job) file(ctx context.Context, from string) (Result, error) {
	if err := j.copyFile(ctx, from); err != nil {
		return j.result, fmt.Errorf("copy file %s to %s: %w", from, j.to, err)
	}
	return j.result, nil
}

func (j *job) copyFile(ctx context.Context, from string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	source, target, err := j.openFiles(from)
	if err != nil {
		return err
	}
	defer source.Close()
	defer target.Close()
	if err := j.contents(ctx, source, target); err != nil {
		return err
	}
	if err := j.present(); err != nil {
		return err
	}
	j.step("sync")
	if err := target.Sync(); err != nil {
		return err
	}
	j.step("sync directory")
	return syncDir(filepath.Dir(j.to))
}

// openFiles opens the two files, of which the destination is made.
func (j *job) openFiles(from string) (source, target *os.File, err error) {
	source, info, err := openRegular(from, os.O_RDONLY)
	if err != nil {
		return nil, nil, err
	}
	j.step("create")
	target, j.destination, err = openRegular(j.to, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, nil, errors.Join(err, source.Close())
	}
	if os.SameFile(info, j.destination) {
		err = errors.New("they are the same file")
		return nil, nil, errors.Join(err, source.Close(), target.Close())
	}
	return source, target, nil
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

func syncDir(dir string) error {
	handle, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(handle.Sync(), handle.Close())
}
