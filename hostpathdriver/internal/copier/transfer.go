package copier

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// bufferSize is the size of the buffer for copies in user space.
const bufferSize = 1 << 20

// contents gives a file the contents of another one: with all blocks shared, or its data copied into an empty file.
func (j *job) contents(ctx context.Context, source, target *os.File) error {
	info, err := source.Stat()
	if err != nil {
		return err
	}
	j.step("empty")
	if err := target.Truncate(0); err != nil {
		return err
	}
	shared, err := j.share(source, target, info.Size())
	if err != nil || shared || j.onlyShare {
		return err
	}
	if info, err = j.statBefore(ctx, source); err != nil {
		return err
	}
	j.step("extend")
	if err := target.Truncate(info.Size()); err != nil {
		return err
	}
	if err := j.copyData(ctx, source, target, info.Size()); err != nil {
		return err
	}
	return j.reconcile(source, target, info)
}

// share makes the empty target share the blocks of the source, in one step and at one point in time.
func (j *job) share(source, target *os.File, size int64) (bool, error) {
	if j.noShare || j.unshared || size == 0 && !j.onlyShare {
		return false, nil
	}
	j.step("share")
	err := retryEINTR(func() error { return unix.IoctlFileClone(int(target.Fd()), int(source.Fd())) })
	if err == nil {
		j.result.Shared = true
		return true, nil
	}
	j.unshared = isAny(err, unix.EOPNOTSUPP, unix.ENOTTY, unix.ENOSYS, unix.EXDEV)
	if !j.unshared && !refused(err) {
		return false, fmt.Errorf("share blocks of %s: %w", source.Name(), err)
	}
	return false, nil
}

// statBefore returns the status of a source before its bytes are copied. A write in the same tick of the kernel's clock as the one before leaves the time
// of the last modification unchanged: statBefore waits for the clock once, and takes a source that is still written to for torn.
func (j *job) statBefore(ctx context.Context, source *os.File) (os.FileInfo, error) {
	for waited := false; ; waited = true {
		now, err := coarseClock()
		if err != nil {
			return nil, err
		}
		info, err := source.Stat()
		if err != nil {
			return nil, err
		}
		modified := info.ModTime().UnixNano()
		ahead := modified > now+int64(time.Second) // It was set: a write gets an earlier one.
		if ahead || distinguishable(modified, now) {
			return info, nil
		}
		if waited {
			j.result.Torn = true
			return info, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(untilStable(modified)):
		}
	}
}

// copyData copies the data before an offset; holes stay holes.
func (j *job) copyData(ctx context.Context, source, target *os.File, size int64) error {
	for at := int64(0); at < size; {
		start, end, err := nextData(source, at, size)
		if err != nil {
			return fmt.Errorf("find data in %s: %w", source.Name(), err)
		}
		for at = start; at < end; {
			if err := j.proceed(ctx); err != nil {
				return err
			}
			j.step("copy")
			n, err := j.chunk(source, target, at, min(end-at, j.limits.chunk))
			at += n
			j.written += n
			if err != nil {
				return err
			}
			if n == 0 {
				return nil // the source became smaller
			}
		}
	}
	return nil
}

// reconcile marks the copy as torn if the source changed during the copy, and truncates it to a source that became smaller.
func (j *job) reconcile(source, target *os.File, before os.FileInfo) error {
	info, err := source.Stat()
	if err != nil {
		return err
	}
	j.result.Torn = j.result.Torn || !info.ModTime().Equal(before.ModTime()) || info.Size() != before.Size()
	if info.Size() >= before.Size() {
		return nil
	}
	j.step("shorten")
	return target.Truncate(info.Size())
}

// chunk copies some bytes, none at the end of the source.
func (j *job) chunk(source, target *os.File, at, length int64) (int64, error) {
	// copy_file_range would share blocks, too.
	if !j.buffered && !j.noShare {
		n, err := copyRange(source, target, at, length)
		if n > 0 || err != nil && !refused(err) {
			return n, err
		}
		// No bytes and no error is the end of the source, or a file system
		// that is not up to it.
		j.buffered = err != nil
	}
	if j.buffer == nil {
		j.buffer = make([]byte, bufferSize)
	}
	n, err := source.ReadAt(j.buffer[:min(length, bufferSize)], at)
	if n == 0 {
		if errors.Is(err, io.EOF) {
			return 0, nil
		}
		return 0, err
	}
	n, err = target.WriteAt(j.buffer[:n], at)
	return int64(n), err
}

func copyRange(source, target *os.File, at, length int64) (int64, error) {
	var n int
	err := retryEINTR(func() (err error) {
		in, out := at, at
		n, err = unix.CopyFileRange(int(source.Fd()), &in, int(target.Fd()), &out, int(length), 0)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("copy %d bytes at %d of %s: %w", length, at, source.Name(), err)
	}
	return int64(n), nil
}

// nextData returns the first range of data at or after an offset. It is empty at the end, if the rest is a hole. On a file system without SEEK_DATA the
// whole rest is data.
func nextData(file *os.File, at, size int64) (start, end int64, err error) {
	start, err = unix.Seek(int(file.Fd()), at, unix.SEEK_DATA)
	if err == nil {
		end, err = unix.Seek(int(file.Fd()), start, unix.SEEK_HOLE)
	}
	switch {
	case errors.Is(err, unix.ENXIO):
		return size, size, nil
	case isAny(err, unix.EINVAL, unix.EOPNOTSUPP, unix.ENOSYS):
		return at, size, nil
	}
	return min(start, size), min(end, size), err
}
