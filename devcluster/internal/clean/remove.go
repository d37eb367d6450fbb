package clean

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// errMount is the error of a removal that came to a mount point.
var errMount = errors.New("a file system is mounted here; nothing below it was removed")

// tree removes files of one mount. It compares the mount of every directory that it opens, so that it removes nothing through a
// mount that was made after the list of mounts was read, or that is missing from that list.
type tree struct {
	mount string // mnt_id of proc_pid_fdinfo(5)
}

// removeIn removes everything in dir but the names in keep.
func removeIn(dir string, keep map[string]bool) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	var t tree
	if t.mount, err = mountOf(f); err != nil {
		return err
	}
	return t.empty(f, keep)
}

func (t tree) empty(dir *os.File, keep map[string]bool) error {
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if keep[name] {
			continue
		}
		if err := t.remove(dir, name); err != nil {
			return err
		}
	}
	return nil
}

// remove removes an entry of a directory, with everything below it.
func (t tree) remove(dir *os.File, name string) error {
	err := unlink(dir, name, 0)
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	path := filepath.Join(dir.Name(), name)
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	sub := os.NewFile(uintptr(fd), path)
	defer sub.Close()
	mount, err := mountOf(sub)
	if err != nil {
		return err
	}
	if mount != t.mount {
		return &os.PathError{Op: "remove", Path: path, Err: errMount}
	}
	if err := t.empty(sub, nil); err != nil {
		return err
	}
	return unlink(dir, name, unix.AT_REMOVEDIR)
}

func unlink(dir *os.File, name string, flags int) error {
	if err := unix.Unlinkat(int(dir.Fd()), name, flags); err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "unlinkat", Path: filepath.Join(dir.Name(), name), Err: err}
	}
	return nil
}

// mountOf returns the ID of the mount in which an open directory lies. Bind mounts of one file system share its device number, so that
// st_dev would not do.
func mountOf(f *os.File) (string, error) {
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", f.Fd()))
	if err != nil {
		return "", fmt.Errorf("find the mount of %q: %w", f.Name(), err)
	}
	for line := range strings.Lines(string(info)) {
		if id, found := strings.CutPrefix(line, "mnt_id:"); found {
			return strings.TrimSpace(id), nil
		}
	}
	return "", fmt.Errorf("find the mount of %q: this kernel does not show it in /proc/self/fdinfo", f.Name())
}
