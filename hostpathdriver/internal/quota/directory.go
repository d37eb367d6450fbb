package quota

import (
	"errors"
	"fmt"
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// directory is an open one. All that is known of a directory is asked of it,
// and never of its path.
type directory struct{ *os.File }

// open refuses what is not a directory, and links to one.
func open(path string) (*directory, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	return &directory{f}, nil
}

// enforced reports whether limits of projects are in force on the file system,
// and this process may set them. To read those of any project is allowed to
// whom setting is.
func (d *directory) enforced() (bool, error) {
	const both = stateAccounted | stateEnforced
	flags, err := d.state()
	if err == nil && flags&both == both {
		_, err = d.account(0)
	}
	if unavailable(err) {
		return false, nil
	}
	return err == nil && flags&both == both, err
}

// project returns the project that the directory has for itself, or 0. One that
// Limit has completed is inherited by what is in it. Before, at a crash, the
// directory is the only one that has it, or another directory inherits it rightly.
func (d *directory) project() (uint32, error) {
	own, err := d.attributes()
	if err != nil {
		return 0, err
	}
	above, err := d.above()
	if err != nil {
		return 0, err
	}
	if above.inherits() && above.Project == own.Project || own.Project < firstProject || own.Project > lastProject {
		return 0, nil
	}
	if !own.inherits() {
		a, err := d.account(own.Project)
		if err != nil || a.inodes != 1 {
			return 0, err
		}
	}
	return own.Project, nil
}

// mayClaim reports whether the directory may get a project of its own.
func (d *directory) mayClaim() error {
	above, err := d.above()
	if err != nil {
		return err
	}
	if above.inherits() {
		return ErrInherited
	}
	if _, err := d.ReadDir(1); err == nil {
		return ErrNotEmpty
	} else if !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// take gives the directory a project if nothing else has it. The kernel has no
// atomic call for that: the process that checks, takes the project and then finds
// itself its only user was first; a process that checked meanwhile finds two users.
func (d *directory) take(project uint32) (bool, error) {
	a, err := d.account(project)
	if err != nil || !a.unused() {
		return false, err
	}
	before, err := d.attributes()
	if err != nil {
		return false, err
	}
	if err := d.setAttributes(before.with(project, false)); err != nil {
		return false, err
	}
	if a, err = d.account(project); err != nil || a.inodes == 1 {
		return err == nil, err
	}
	return false, d.setAttributes(before)
}

// above returns the attributes of the directory above; none where its file
// system has none.
func (d *directory) above() (attributes, error) {
	fd, err := unix.Openat(int(d.Fd()), "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return attributes{}, &os.PathError{Op: "open", Path: d.Name() + "/..", Err: err}
	}
	parent := &directory{os.NewFile(uintptr(fd), d.Name()+"/..")}
	defer parent.Close()
	a, err := parent.attributes()
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) {
		return attributes{}, nil
	}
	return a, err
}

// limited returns the account of the directory's own project. There is no limit
// in it where none is in force.
func (d *directory) limited() (account, error) {
	enforced, err := d.enforced()
	if err != nil || !enforced {
		return account{}, err
	}
	project, err := d.project()
	if err != nil || project == 0 {
		return account{}, err
	}
	return d.account(project)
}

// setLimit limits the project of the directory, durably. The attributes come
// after the limit, even if they are as before: the file system writes
// what is done in the order in which it is done, so that fsync of the directory
// covers both.
func (d *directory) setLimit(project uint32, bytes int64) error {
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(d.Fd()), &stat); err != nil {
		return fmt.Errorf("size of blocks: %w", err)
	}
	if err := d.setAccount(project, roundUp(bytes, uint64(stat.Bsize))/sector); err != nil {
		return err
	}
	a, err := d.attributes()
	if err != nil {
		return err
	}
	if err := d.setAttributes(a.with(project, true)); err != nil {
		return err
	}
	return d.Sync()
}

// attributes is struct fsxattr (linux/fs.h).
type attributes struct {
	Flags      uint32
	ExtentSize uint32
	Extents    uint32
	Project    uint32
	CowSize    uint32
	_          [8]byte
}

const inherit = 0x200 // FS_XFLAG_PROJINHERIT

// inherits reports whether what is made in the directory gets its project.
func (a attributes) inherits() bool { return a.Flags&inherit != 0 }

// with returns the attributes with another project.
func (a attributes) with(project uint32, inherited bool) attributes {
	a.Project = project
	a.Flags &^= inherit
	if inherited {
		a.Flags |= inherit
	}
	return a
}

// Numbers of ioctls, whose bits of direction are not the same on all
// architectures (asm/ioctl.h).
const (
	reads  = unix.FS_IOC_GET_ENCRYPTION_NONCE & 0xe0000000
	writes = unix.FS_IOC_ENABLE_VERITY & 0xe0000000

	ioctlGet = reads | unsafe.Sizeof(attributes{})<<16 | 'X'<<8 | 31  // FS_IOC_FSGETXATTR
	ioctlSet = writes | unsafe.Sizeof(attributes{})<<16 | 'X'<<8 | 32 // FS_IOC_FSSETXATTR
)

func (d *directory) attributes() (attributes, error) {
	var a attributes
	return a, d.ioctl("read the project of", ioctlGet, &a)
}

func (d *directory) setAttributes(a attributes) error {
	return d.ioctl(fmt.Sprintf("give project %d to", a.Project), ioctlSet, &a)
}

func (d *directory) ioctl(what string, request uintptr, a *attributes) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, d.Fd(), request, uintptr(unsafe.Pointer(a))); errno != 0 {
		return fmt.Errorf("%s %s: %w", what, d.Name(), errno)
	}
	return nil
}
