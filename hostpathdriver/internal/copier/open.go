package copier

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// openAt opens a path below a directory. It follows no symbolic link, not even the last, and crosses no mount point, not even one of the same file system,
// which a device number would not show.
func openAt(dir *os.File, path string, flags int) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_NOFOLLOW | unix.O_CLOEXEC),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	}
	if flags&unix.O_CREAT != 0 {
		how.Mode = 0o600
	}
	fd := -1
	err := retryEINTR(func() (err error) {
		fd, err = unix.Openat2(int(dir.Fd()), path, &how)
		return err
	})
	if errors.Is(err, unix.EXDEV) {
		return nil, fmt.Errorf("something is mounted here: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// descend opens a directory below another one, however long its path is. The empty path is the directory itself.
func descend(root *os.File, path string) (*os.File, error) {
	const piece = unix.PathMax - 256 // less than the longest path by the longest name
	dir, err := openAt(root, ".", unix.O_PATH|unix.O_DIRECTORY)
	for err == nil && path != "" {
		head, tail := path, ""
		if len(path) > piece {
			cut := strings.LastIndexByte(path[:piece], '/')
			head, tail = path[:cut], path[cut+1:]
		}
		above := dir
		dir, err = openAt(above, head, unix.O_PATH|unix.O_DIRECTORY)
		above.Close()
		path = tail
	}
	return dir, err
}

// handle is a path of an open file, for system calls that refuse descriptors opened with O_PATH, among them all of symbolic links. Nobody can replace the
// file at this path.
func handle(file *os.File) string {
	return "/proc/self/fd/" + strconv.Itoa(int(file.Fd()))
}

// reopen opens a file for reading that is open with O_PATH, without changing the time of the last access where that is permitted.
func reopen(file *os.File, flags int) (*os.File, error) {
	opened, err := os.OpenFile(handle(file), flags|unix.O_NOATIME, 0)
	if errors.Is(err, unix.EPERM) { // another user owns the file
		opened, err = os.OpenFile(handle(file), flags, 0)
	}
	return opened, err
}

func status(file *os.File) (unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return st, fmt.Errorf("stat %s: %w", file.Name(), err)
	}
	return st, nil
}

func kind(st *unix.Stat_t) uint32 {
	return st.Mode & unix.S_IFMT
}

// namesAfter returns the first names of a directory that sort after one, up to a limit, in order. It reads the whole directory, but holds little more than
// twice the limit in memory.
func namesAfter(dir *os.File, after string, limit int) ([]string, error) {
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	var names []string
	bound := "" // names from here on are not wanted
	unwanted := func(name string) bool { return name <= after || bound != "" && name >= bound }
	for {
		some, err := dir.Readdirnames(1024)
		names = append(names, slices.DeleteFunc(some, unwanted)...)
		if err != nil || len(names) >= 2*limit {
			slices.Sort(names)
			if len(names) >= limit {
				names = names[:limit]
				bound = names[limit-1]
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, fs.ErrNotExist) {
			return names, nil
		}
		if err != nil {
			return nil, err
		}
	}
}
