// Package quota limits what is in directories: the seam between the driver and
// the project quotas of file systems. Behind it stand Kernel, for machines, and
// Fake, for tests without privileges. Directories have to be limited before
// anything is in them; do not use it to limit disks, which are files of their
// size, nor for directories that another program limits.
//
// Project quotas are those of XFS mounted with prjquota, and of ext4 made with
// -O quota,project (or changed by tune2fs) and mounted with prjquota.
//
// They stop a workload that fills a disk by accident, not a malicious one: outside of a user
// namespace, the owner of a file may give it to another project
// (FS_IOC_FSSETXATTR), and on ext4 a process with CAP_SYS_RESOURCE, such as a
// privileged container, may exceed every limit.
//
// Sources: quotactl(2), Linux UAPI linux/dqblk_xfs.h and linux/fs.h, fs/quota,
// fs/ioctl.c.
package quota

import (
	"errors"
	"fmt"
	"math"
)

// ErrUnavailable says that directories cannot be limited there.
var ErrUnavailable = errors.New("project quotas are not enforced there: they need XFS or ext4 (-O quota,project) mounted with prjquota, Linux 5.14 and CAP_SYS_ADMIN")

// ErrNotEmpty says that a directory cannot be limited any more, as what is in
// it already would not count.
var ErrNotEmpty = errors.New("only an empty directory can get a limit")

// ErrInherited says that a directory cannot be limited because another program
// limits the one above it: no directory with a project of its own could be
// renamed from one such place to another.
var ErrInherited = errors.New("the directory above it has a project that is inherited (lsattr -p shows P)")

// Usage is what a directory takes of what it may.
type Usage struct {
	// Bytes are those of the blocks of files and directories, the limited one
	// included, as the file system counts them. XFS counts what is removed
	// for a moment longer.
	Bytes int64
	// Inodes are files and directories, the limited one included.
	Inodes int64
	// Limit of the bytes.
	Limit int64
}

// Quotas limits what is in directories. A path is that of the directory
// itself: a symbolic link is refused. What a directory is limited to is known
// by the directory and its file system alone, so that it may be renamed, and
// several processes may limit directories of one file system. Calls that change
// the limit of one directory must not overlap.
type Quotas interface {
	// Enforced reports whether new directories in path can be limited: project
	// quotas are accounted for and enforced there, this process may set
	// them, and path does not pass on a project of its own.
	Enforced(path string) (bool, error)
	// Limit limits a directory to so many bytes, rounded up to a block of
	// the file system, durably. One that has no limit yet must be empty:
	// ErrNotEmpty. Called again, it changes the limit; where more is used
	// than that, nothing can be added. Where Enforced is false:
	// ErrUnavailable, or ErrInherited, whatever is in it. After a crash in
	// the middle it has to be called again, before anything else is done
	// with the directory.
	Limit(path string, bytes int64) error
	// Release takes the limit of a directory away, before it is removed:
	// the limit of one that was removed without it is kept by the file system
	// forever. A directory without a limit of its own, and one that does
	// not exist, are no errors, nor is it that this process may not set
	// limits (any more). It is not durable by itself, but is as soon as the
	// removal is.
	Release(path string) error
	// Usage measures a directory, at no cost. It is not ok without a limit
	// of its own that is in force: made before quotas were switched on,
	// say, or they are off now.
	Usage(path string) (u Usage, ok bool, err error)
}

// checkBytes says the rule of limits. Zero would be no limit to the kernel.
func checkBytes(bytes int64) error {
	if bytes <= 0 {
		return fmt.Errorf("%d bytes: a limit must be positive", bytes)
	}
	return nil
}

// roundUp makes a positive number a multiple of a block, if it can be.
func roundUp(bytes int64, block uint64) uint64 {
	const most = math.MaxInt64
	if uint64(bytes) > most-block {
		return most / block * block
	}
	return (uint64(bytes) + block - 1) / block * block
}
