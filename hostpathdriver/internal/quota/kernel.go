package quota

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"

	"golang.org/x/sys/unix"
)

// The projects that directories get. The kernel has 2^32-1 of them and no
// registry. Administrators count from 1 (/etc/projects), the kubelet from
// 1048577 for its emptyDir volumes; this range is far from both, and ids in it
// are positive as signed 32-bit numbers, too.
const (
	firstProject uint32 = 1 << 30
	lastProject  uint32 = 1<<31 - 1
)

// XFS never gives back what it has once taken to note a project, 30 of them to
// a block: ids from anywhere in the range would cost a block for each directory
// that ever was. Therefore they are from a window that is twice as large after
// each id that was found taken.
const (
	firstWindow = 1024
	tries       = 64
)

// Kernel is the Quotas of the machine. It needs Linux 5.14 (quotactl_fd) and
// CAP_SYS_ADMIN in the first user namespace. The device of the file system need
// not be seen.
type Kernel struct {
	pick func(window uint32) uint32 // instead of a random number, for tests
}

var _ Quotas = Kernel{}

// New returns the Quotas of the machine.
func New() Kernel { return Kernel{} }

// Enforced implements Quotas.
func (Kernel) Enforced(path string) (bool, error) {
	d, err := open(path)
	if err != nil {
		return false, fmt.Errorf("look for project quotas: %w", err)
	}
	defer d.Close()
	enforced, err := d.enforced()
	if err == nil && enforced {
		var a attributes
		a, err = d.attributes()
		enforced = !a.inherits()
	}
	if err != nil {
		return false, fmt.Errorf("look for project quotas at %s: %w", path, err)
	}
	return enforced, nil
}

// Limit implements Quotas.
func (k Kernel) Limit(path string, bytes int64) error {
	if err := k.limit(path, bytes); err != nil {
		return fmt.Errorf("limit %s to %d bytes: %w", path, bytes, err)
	}
	return nil
}

func (k Kernel) limit(path string, bytes int64) error {
	if err := checkBytes(bytes); err != nil {
		return err
	}
	d, err := open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	enforced, err := d.enforced()
	if err == nil && !enforced {
		err = ErrUnavailable
	}
	if err != nil {
		return err
	}
	project, err := d.project()
	if err == nil && project == 0 {
		project, err = k.claim(d)
	}
	if err != nil {
		return err
	}
	return d.setLimit(project, bytes)
}

// claim gives an empty directory a project that nothing else has.
func (k Kernel) claim(d *directory) (uint32, error) {
	if err := d.mayClaim(); err != nil {
		return 0, err
	}
	window := uint32(firstWindow)
	for range tries {
		project := firstProject + k.random(window)
		if taken, err := d.take(project); err != nil || taken {
			return project, err
		}
		window = min(2*window, lastProject-firstProject+1)
	}
	return 0, fmt.Errorf("no project is free: %d ids from %d on are in use", tries, firstProject)
}

func (k Kernel) random(window uint32) uint32 {
	if k.pick != nil {
		return k.pick(window)
	}
	return rand.Uint32N(window)
}

// Release implements Quotas.
func (Kernel) Release(path string) error {
	d, err := open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("release a limit: %w", err)
	}
	defer d.Close()
	project, err := d.project()
	if err == nil && project != 0 {
		err = d.setAccount(project, 0)
	}
	if err != nil && !unavailable(err) {
		return fmt.Errorf("release the limit of %s: %w", path, err)
	}
	return nil
}

// Usage implements Quotas.
func (Kernel) Usage(path string) (u Usage, ok bool, err error) {
	d, err := open(path)
	if err != nil {
		return Usage{}, false, fmt.Errorf("measure what is in a directory: %w", err)
	}
	defer d.Close()
	a, err := d.limited()
	if err != nil {
		return Usage{}, false, fmt.Errorf("measure what is in %s: %w", path, err)
	}
	if a.limit == 0 {
		return Usage{}, false, nil
	}
	return Usage{Bytes: int64(a.bytes * sector), Inodes: int64(a.inodes), Limit: int64(a.limit * sector)}, true, nil
}

// unavailable reports whether an error of the kernel says that there are no
// project quotas. Source: fs/quota/quota.c, do_quotactl and below; fs/ioctl.c.
func unavailable(err error) bool {
	for _, errno := range []error{
		unix.ENOSYS,     // no quotactl_fd, a file system without quotas, or all are off
		unix.EINVAL,     // a file system with other quotas only, or the wrong user namespace
		unix.ESRCH,      // those of projects are off
		unix.EPERM,      // not allowed
		unix.ENOTTY,     // a file system without projects,
		unix.EOPNOTSUPP, // again
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}
