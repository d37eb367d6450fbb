package fsgroup

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// batch is how many names of a directory are read at a time: a volume may have millions of files in one.
const batch = 512

// file is a file that was opened only to be changed: a device or a pipe does not notice it.
type file struct {
	fd   int
	path string
	stat unix.Statx_t
}

// mount identifies what is mounted where a file is. Two mounts of one file system differ in their ID, which kernels before
// Linux 5.8 do not have; parts of one file system may have several device numbers.
type mount struct {
	id           uint64
	major, minor uint32
}

// open opens a name in a directory without following a link.
func open(dir int, name, path string) (*file, error) {
	if len(path) >= unix.PathMax { // also a bound of the descriptors that a walk needs
		return nil, fmt.Errorf("open %.100q...: %w", path, unix.ENAMETOOLONG)
	}
	f := &file{path: path}
	err := uninterrupted(func() (err error) {
		f.fd, err = unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open %q: %w", path, err)
	}
	err = uninterrupted(func() error {
		return unix.Statx(f.fd, "", unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &f.stat)
	})
	if err != nil {
		f.close()
		return nil, fmt.Errorf("stat %q: %w", path, err)
	}
	return f, nil
}

func (f *file) close() { _ = unix.Close(f.fd) } // nothing was written

func (f *file) mode() uint32 { return uint32(f.stat.Mode) }

func (f *file) isDirectory() bool { return f.mode()&unix.S_IFMT == unix.S_IFDIR }

func (f *file) isLink() bool { return f.mode()&unix.S_IFMT == unix.S_IFLNK }

func (f *file) mount() mount {
	if f.stat.Mask&unix.STATX_MNT_ID != 0 {
		return mount{id: f.stat.Mnt_id}
	}
	return mount{major: f.stat.Dev_major, minor: f.stat.Dev_minor}
}

// children calls visit with each file of a directory, in the directory's order. What is deleted meanwhile is left out.
func (f *file) children(visit func(*file) error) error {
	dir, err := f.directory()
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(batch)
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ENOENT) { // the end, or a directory that is deleted
			return nil
		}
		if err != nil {
			return fmt.Errorf("read directory %q: %w", f.path, err)
		}
		for _, name := range names {
			if err := f.child(name, visit); err != nil {
				return err
			}
		}
	}
}

// directory opens a directory for reading.
func (f *file) directory() (*os.File, error) {
	var fd int
	err := uninterrupted(func() (err error) {
		fd, err = unix.Openat(f.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open directory %q: %w", f.path, err)
	}
	return os.NewFile(uintptr(fd), f.path), nil
}

func (f *file) child(name string, visit func(*file) error) error {
	child, err := open(f.fd, name, f.path+"/"+name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer child.close()
	return visit(child)
}

// chown changes the group of an open file, which may be a link.
func chown(f *file, group int) error {
	return uninterrupted(func() error { return unix.Fchownat(f.fd, "", -1, group, unix.AT_EMPTY_PATH) })
}

// chmod changes the mode of an open file, which is not a link. A descriptor that is not open for reading has no fchmod, but its name
// below /proc leads to the same file, wherever it was moved to.
func chmod(f *file, mode uint32) error {
	return uninterrupted(func() error { return unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", f.fd), mode&0o7777) })
}

// uninterrupted repeats a system call that a signal to this process has interrupted.
func uninterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
