package copier

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// bufferSize is the size of the buffer for copies in user space.
const bufferSize = 1 << 20

// transfer copies the contents of one file.
type transfer struct {
	*job

	source, target *os.File
	shared         bool // the destination shares all blocks of the source
	extent
}

// newTransfer resumes a copy at done, if done is about these two files, and else
// starts a new one: with all blocks shared, or an empty destination.
func (j *job) newTransfer(source, target *os.File, done extent) (*transfer, error) {
	t := &transfer{job: j, source: source, target: target}
	var errSource, errTarget error
	t.Source, errSource = identify(source)
	t.Target, errTarget = identify(target)
	info, err := source.Stat()
	if err := errors.Join(errSource, errTarget, err); err != nil {
		return nil, err
	}
	t.Size, t.Modified = info.Size(), info.ModTime().UnixNano()
	resumed, err := t.resume(done)
	if err != nil || resumed {
		return t, err
	}
	if err := t.share(); err != nil || t.shared {
		return t, err
	}
	return t, t.resize(0)
}

// resume takes over the finished part. Data behind it is truncated: it may not be
// on disk, or the source may have a hole there by now.
func (t *transfer) resume(done extent) (bool, error) {
	info, err := t.target.Stat()
	if err != nil {
		return false, err
	}
	if done.At <= 0 || done.Source != t.Source || done.Target != t.Target || done.At > min(t.Size, info.Size()) {
		return false, nil
	}
	t.At, t.Modified = done.At, done.Modified
	t.pass(t.At)
	return true, t.resize(t.At)
}

// resize leaves the destination with the size of the source, all of it a hole
// from an offset on.
func (t *transfer) resize(keep int64) error {
	t.step("truncate")
	if err := t.target.Truncate(keep); err != nil {
		return err
	}
	t.step("extend")
	return t.target.Truncate(t.Size)
}

// share makes the destination share the blocks of the source, in one step and at
// one point in time. It empties the destination before, as data behind the end of
// the source would stay.
func (t *transfer) share() error {
	if t.NoReflink || t.unshared || t.Size == 0 {
		return nil
	}
	t.step("empty")
	if err := t.target.Truncate(0); err != nil {
		return err
	}
	t.step("reflink")
	err := again(func() error { return unix.IoctlFileClone(int(t.target.Fd()), int(t.source.Fd())) })
	if err != nil {
		t.unshared = isAny(err, unix.EOPNOTSUPP, unix.ENOTTY, unix.ENOSYS, unix.EXDEV)
		if !t.unshared && !refused(err) {
			return fmt.Errorf("share blocks of %s: %w", t.source.Name(), err)
		}
		return nil
	}
	info, err := t.target.Stat()
	if err != nil {
		return err
	}
	t.shared, t.At, t.Size = true, info.Size(), info.Size()
	t.result.Reflinked = true
	t.pass(t.At)
	return nil
}

// run copies the remaining data.
func (t *transfer) run(ctx context.Context) error {
	if t.shared {
		return nil
	}
	for t.At < t.Size {
		start, end, err := nextData(t.source, t.At, t.Size)
		if err != nil {
			return fmt.Errorf("look for data in %s: %w", t.source.Name(), err)
		}
		t.pass(start - t.At)
		t.At = start
		if err := t.data(ctx, end); err != nil {
			return err
		}
	}
	return t.reconcileWithSource()
}

// data copies up to an offset, or to where the source ends by now.
func (t *transfer) data(ctx context.Context, end int64) error {
	for t.At < end {
		if err := t.proceed(ctx); err != nil {
			return err
		}
		t.step("copy")
		n, err := t.chunk(min(end-t.At, t.limits.chunk))
		t.At += n
		t.result.Written += n
		t.pass(n)
		if err != nil {
			return err
		}
		if n == 0 {
			t.Size = t.At
			return nil
		}
		if err := t.spend(n); err != nil {
			return err
		}
	}
	return nil
}

// reconcileWithSource marks the copy as torn if the source changed during the
// copy, and truncates it to a source that became smaller.
func (t *transfer) reconcileWithSource() error {
	info, err := t.source.Stat()
	if err != nil {
		return err
	}
	t.result.Torn = t.result.Torn || info.ModTime().UnixNano() != t.Modified
	if now, err := t.target.Stat(); err != nil || now.Size() <= info.Size() {
		return err
	}
	t.step("shorten")
	return t.target.Truncate(info.Size())
}

// chunk copies some bytes, none at the end of the source.
func (t *transfer) chunk(length int64) (int64, error) {
	// copy_file_range would share blocks, too.
	if !t.buffered && !t.NoReflink {
		n, err := copyRange(t.source, t.target, t.At, length)
		if n > 0 || err != nil && !refused(err) {
			return n, err
		}
		// No bytes and no error is the end of the source, or a file system
		// that is not up to it.
		t.buffered = err != nil
	}
	if t.buffer == nil {
		t.buffer = make([]byte, bufferSize)
	}
	n, err := t.source.ReadAt(t.buffer[:min(length, bufferSize)], t.At)
	if n == 0 {
		if errors.Is(err, io.EOF) {
			return 0, nil
		}
		return 0, err
	}
	n, err = t.target.WriteAt(t.buffer[:n], t.At)
	return int64(n), err
}

func copyRange(source, target *os.File, at, length int64) (int64, error) {
	var n int
	err := again(func() (err error) {
		in, out := at, at
		n, err = unix.CopyFileRange(int(source.Fd()), &in, int(target.Fd()), &out, int(length), 0)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("copy %d bytes at %d of %s: %w", length, at, source.Name(), err)
	}
	return int64(n), nil
}

// nextData returns the first range of data at or behind an offset. It is empty
// at the end, if the rest is a hole. On a file system without SEEK_DATA the whole
// rest is data.
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

// refused reports whether the kernel cannot do the operation between these two
// files, so that reading and writing may still work, or return a clearer error.
// Some file systems without the operation return EBADF.
func refused(err error) bool {
	return isAny(err, unix.EOPNOTSUPP, unix.ENOTTY, unix.ENOSYS, unix.EXDEV, unix.EINVAL, unix.ETXTBSY, unix.EPERM, unix.EBADF)
}

func isAny(err error, targets ...error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// again repeats a system call that a signal interrupted.
func again(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
