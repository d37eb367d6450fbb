package copier

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNoChangeTracking says that changes cannot be found out, because the file system does not update the time of the last change of inodes reliably.
var ErrNoChangeTracking = errors.New("its file system does not track changes reliably")

// Fingerprint identifies a state of a file, or of a directory with everything below it. It is valid until the machine restarts, and only in memory.
type Fingerprint struct {
	sum    [sha256.Size]byte
	stable bool
}

// Equal reports whether nobody changed the file or tree between f, which was taken first, and later. It is false, too, if f was taken while somebody
// kept writing.
func (f Fingerprint) Equal(later Fingerprint) bool {
	return f.stable && f.sum == later.sum
}

// TakeFingerprint takes the fingerprint of a file or tree by the inode numbers, sizes and times of the last change (ctime) of its files, so that it
// reads no data. A write, a rename, a new attribute and a time that was set back each change it; reading does not.
//
// Times are as coarse as the clock of the kernel, 1 to 10 ms: if a file was changed just now, TakeFingerprint waits for the clock, at most 3 times. Dirty
// pages of a tree are written to the disk first, since a second store through mmap to a dirty page would change no time.
//
// Files of ext3, ext4, XFS, btrfs, tmpfs and overlayfs and trees of the first four are supported; elsewhere the error is ErrNoChangeTracking. Other errors
// wrap that of ctx or the kernel's.
func TakeFingerprint(ctx context.Context, path string) (Fingerprint, error) {
	f, err := takeStable(ctx, path)
	if err != nil {
		return Fingerprint{}, fmt.Errorf("take the fingerprint of %s: %w", path, err)
	}
	return f, nil
}

func takeStable(ctx context.Context, path string) (Fingerprint, error) {
	for tries := 0; ; tries++ {
		f, newest, err := takeOnce(ctx, path)
		if err != nil || f.stable || tries == 3 {
			return f, err
		}
		select {
		case <-ctx.Done():
			return f, ctx.Err()
		case <-time.After(untilStable(newest)):
		}
	}
}

// takeOnce returns the time of the last change beside the fingerprint, in nanoseconds.
func takeOnce(ctx context.Context, path string) (Fingerprint, int64, error) {
	begin, err := coarseClock()
	if err != nil {
		return Fingerprint{}, 0, err
	}
	root, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return Fingerprint{}, 0, err
	}
	defer root.Close()
	st, err := status(root)
	if err != nil {
		return Fingerprint{}, 0, err
	}
	isTree := kind(&st) == unix.S_IFDIR
	if err := checkTracking(root, isTree); err != nil {
		return Fingerprint{}, 0, err
	}
	w := &fingerprinter{digest: sha256.New(), end: begin + int64(setBack)}
	if isTree {
		err = w.walk(ctx, root)
	} else {
		w.add("", &st)
	}
	return Fingerprint{sum: [sha256.Size]byte(w.digest.Sum(nil)), stable: distinguishable(w.newest, begin)}, w.newest, err
}

// distinguishable reports whether a change at a moment, or after it, gets another time than an earlier change. Some file systems have times in seconds.
func distinguishable(changed, moment int64) bool {
	return changed+granularity(changed) <= moment
}

// granularity is how long the time of a change may stay the same, in nanoseconds.
func granularity(changed int64) int64 {
	if changed%int64(time.Second) == 0 {
		return int64(time.Second)
	}
	return 1
}

// untilStable is how long it takes until another change gets another time, unless the clock was set back. Since Linux 6.13 times of files may be up to a
// tick ahead of the coarse clock.
func untilStable(changed int64) time.Duration {
	if granularity(changed) > 1 {
		return time.Second
	}
	var resolution unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_REALTIME_COARSE, &resolution); err != nil {
		return 20 * time.Millisecond // the longest
	}
	return 2 * time.Duration(unix.TimespecToNsec(resolution))
}

// coarseClock reads the clock from which times of files are taken.
func coarseClock() (int64, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now); err != nil {
		return 0, fmt.Errorf("read the clock: %w", err)
	}
	return unix.TimespecToNsec(now), nil
}

// checkTracking refuses file systems that were not found to track changes: a write has to change the time of the file before it is done, and so has, in
// directories, a store through mmap to a page that was written to the disk. Memory is never written to a disk.
func checkTracking(file *os.File, isTree bool) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &st); err != nil {
		return err
	}
	switch uint32(st.Type) { //nolint:gosec // magic numbers have 32 bits
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC:
		return nil
	case unix.TMPFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC:
		if !isTree {
			return nil
		}
	}
	return fmt.Errorf("%w (type %#x)", ErrNoChangeTracking, st.Type)
}

// fingerprinter walks a tree. A change behind its back changes the time of an inode that it has added before: a directory is added before its names are
// read.
type fingerprinter struct {
	stack  stack
	digest hash.Hash
	newest int64 // time of the last change before end
	// end is the time from which changes were made before the clock was set back.
	end int64
}

// setBack is how far in the future a time is that the clock does not reach again while a fingerprint is of use: a further change gets another time. Times that are less far, as those of file
// systems with other clocks, count as now.
const setBack = 10 * time.Minute

// walk adds a tree in lexical order.
func (w *fingerprinter) walk(ctx context.Context, root *os.File) error {
	limits := defaultLimits()
	w.stack.source = root
	defer w.stack.close()
	if err := unix.Syncfs(int(root.Fd())); err != nil {
		return fmt.Errorf("sync file system: %w", err)
	}
	if err := w.enter("", root, limits.open); err != nil {
		return err
	}
	for len(w.stack.levels) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := w.stack.reopen(limits.open); err != nil {
			return fmt.Errorf("return to %q: %w", w.stack.path(""), err)
		}
		name, more, err := w.stack.top().next(limits.names)
		if err == nil && more {
			err = w.entry(name, limits.open)
		}
		if err != nil {
			return fmt.Errorf("at %q: %w", w.stack.path(name), err)
		}
		if !more {
			w.stack.pop().close()
		}
	}
	return nil
}

// entry adds a name of the topmost directory. One that vanishes has changed the time of the directory.
func (w *fingerprinter) entry(name string, open int) error {
	found, err := openAt(w.stack.top().source, name, unix.O_PATH)
	if vanished(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer found.Close()
	st, err := status(found)
	if err != nil {
		return err
	}
	if kind(&st) == unix.S_IFDIR {
		return w.enter(name, found, open)
	}
	w.add(name, &st)
	return nil
}

// enter adds a directory and puts it on the stack.
func (w *fingerprinter) enter(name string, found *os.File, open int) error {
	st, err := status(found)
	if err != nil {
		return err
	}
	w.add(name, &st)
	source, err := reopen(found, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	w.stack.push(&level{name: name, source: source}, open)
	return nil
}

func (w *fingerprinter) add(name string, st *unix.Stat_t) {
	changed := unix.TimespecToNsec(st.Ctim)
	if changed < w.end {
		w.newest = max(w.newest, changed)
	}
	fmt.Fprintf(w.digest, "%d %q %d %o %d %d\n", len(w.stack.levels), name, st.Ino, st.Mode, st.Size, changed)
}
