// Package copier copies files and directory trees: disk images, which are sparse files, and volumes that are directories.
//
// Blocks are shared with the source where the file system can (FICLONE on XFS and btrfs). Elsewhere only data is copied, so that a sparse file stays
// sparse.
//
// A copy that shares its blocks is of one point in time. Bytes that are copied are of the time at which each was copied: a caller that needs one point
// in time keeps writers away until the copy returns, or finds out whether there were any, by Result.Torn or by a Fingerprint before and after.
//
// A copy that was interrupted, by its context or a crash, begins again with the next call: File overwrites its destination, and the caller of Tree
// removes what the interrupted copy left.
//
// A workload may change source and destination meanwhile: nothing follows a symbolic link, leaves the two directories, or crosses a mount point. The
// package needs /proc and Linux 5.8. Two copies to one destination at the same time are not supported.
package copier

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Result says how a copy was made. That of a copy that failed has no meaning.
type Result struct {
	// Shared says that blocks are shared with the source: all those of a file, or those of at least one file of a tree.
	Shared bool
	// Torn says that a file was written to while its bytes were copied, so that the copy of this file is of no single point in time. Files whose blocks
	// are shared are never torn. It relies on the time of the last modification: a program that sets the time back hides a write, which a Fingerprint
	// finds.
	Torn bool
}

// File copies a regular file: its data, holes and size, but no attributes. The destination is made with mode 0600 if it does not exist; if it exists it is
// overwritten. Its directory must exist. When File returns nil the copy and its name survive a power cut. What is in the cache of a loop device and not
// yet in the source is not in the copy.
//
// Errors wrap that of ctx if it ended, fs.ErrNotExist for a missing source or if the destination was removed, renamed or replaced meanwhile, and else
// the kernel's, such as unix.ENOSPC.
func File(ctx context.Context, from, to string) (Result, error) {
	return newJob(to).file(ctx, from)
}

// Share makes the destination share all blocks with the source, as it is at one point in time, and reports whether the file systems can; where they
// cannot, the destination is left empty. It takes milliseconds for a file of any size. In everything else it is as File.
func Share(ctx context.Context, from, to string) (shared bool, err error) {
	j := newJob(to)
	j.onlyShare = true
	result, err := j.file(ctx, from)
	return result.Shared, err
}

// Tree copies what is in a directory, and the attributes of the directory itself, into another directory, which exists and is empty: data with its holes,
// owner, mode, times, extended attributes with access control lists, symbolic and hard links, named pipes, sockets and device nodes. The label of SELinux
// is not copied. When Tree returns nil the copy survives a power cut.
//
// A file that vanishes meanwhile is left out. A mount point in the source is an error, unix.EXDEV, and so is a missing privilege for an owner, an
// attribute or a device node; a destination that is not empty is unix.ENOTEMPTY. What File says about errors applies.
func Tree(ctx context.Context, from, to string) (Result, error) {
	return newJob(to).tree(ctx, from)
}

// limits are constants that tests make smaller.
type limits struct {
	chunk int64 // bytes between two checks of the context
	names int   // names of one directory that are held in memory
	open  int   // levels of a tree that are open, of two descriptors each
}

func defaultLimits() limits {
	return limits{chunk: 8 << 20, names: 64 << 10, open: 256}
}

// job is one copy, of a file or a tree.
type job struct {
	to          string
	limits      limits
	noShare     bool              // tests copy bytes where blocks could be shared
	onlyShare   bool              // copy no bytes
	beforeStep  func(name string) // tests change something before a step
	destination os.FileInfo       // of to when the copy began
	result      Result
	written     int64  // bytes of data
	unshared    bool   // the two file systems cannot share blocks
	buffered    bool   // the kernel does not copy between the two
	buffer      []byte // for the copy that the kernel does not make
}

func newJob(to string) *job {
	return &job{to: to, limits: defaultLimits()}
}

func (j *job) step(name string) {
	if j.beforeStep != nil {
		j.beforeStep(name)
	}
}

// proceed returns an error when the copy is no longer wanted.
func (j *job) proceed(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return j.present()
}

// present returns an error when the destination is gone: the volume was deleted.
func (j *job) present() error {
	info, err := os.Lstat(j.to)
	if err == nil && !os.SameFile(info, j.destination) {
		err = fmt.Errorf("another file replaced it: %w", fs.ErrNotExist)
	}
	if err != nil {
		return fmt.Errorf("check the destination: %w", err)
	}
	return nil
}

// refused reports whether the kernel cannot do the operation between these two files, so that reading and writing may still work, or return a clearer
// error. Some file systems without the operation return EBADF.
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

// retryEINTR repeats a system call that a signal interrupted.
func retryEINTR(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
