package contents

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"golang.org/x/sys/unix"
)

// errMoved is the error for a directory that was moved while a walk was below it.
var errMoved = errors.New("a directory was moved meanwhile")

// entriesSize is how many bytes of the entries of a directory are read at a time.
const entriesSize = 32 << 10

// walk goes through a tree that a tenant may have made, and may change meanwhile. It is in one directory at a time, follows no link, and has two descriptors and 32 bytes of memory for
// each level, however many names there are and however long their paths are.
type walk struct {
	fd   int
	stat unix.Stat_t
	// entries is the space for entries, and unread what was read into it and not looked at yet.
	entries, unread []byte
	// above are the directories above the present one.
	above []place
}

// place is where the walk goes on in a directory.
type place struct {
	device, inode uint64
	offset        int64
}

// newWalk begins a walk at a root.
func newWalk(root string) (*walk, error) {
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: root, Err: err}
	}
	w := &walk{fd: -1}
	if err := w.goTo(fd); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// close ends the walk.
func (w *walk) close() {
	if w.fd >= 0 {
		_ = unix.Close(w.fd)
	}
	w.fd = -1
}

// isDirectory reports whether there are names where the walk is; only at the root there may be none.
func (w *walk) isDirectory() bool { return w.stat.Mode&unix.S_IFMT == unix.S_IFDIR }

// next returns the next name of the directory, and the place after it; an empty name at the end.
func (w *walk) next() (name string, offset int64, err error) {
	for name == "" || name == "." || name == ".." {
		if len(w.unread) == 0 {
			if w.entries == nil {
				w.entries = make([]byte, entriesSize)
			}
			n, err := unix.Getdents(w.fd, w.entries)
			if err != nil {
				return "", 0, fmt.Errorf("list names: %w", err)
			}
			if w.unread = w.entries[:n]; n == 0 {
				return "", 0, nil
			}
		}
		name, offset = w.take()
	}
	return name, offset, nil
}

// take takes an entry from those that were read: its name, and the place after it in the directory. See getdents64(2).
func (w *walk) take() (name string, offset int64) {
	const offsetAt, sizeAt, nameAt = 8, 16, 19
	size := binary.NativeEndian.Uint16(w.unread[sizeAt:])
	offset = int64(binary.NativeEndian.Uint64(w.unread[offsetAt:])) //nolint:gosec // the kernel's type
	name = unix.ByteSliceToString(w.unread[nameAt:size])
	w.unread = w.unread[size:]
	return name, offset
}

// enter goes to a directory of the present one, unless it was exchanged for something else; offset is where the walk goes on in the present one.
func (w *walk) enter(name string, offset int64) error {
	fd, err := unix.Openat(w.fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open %.64q: %w", name, err)
	}
	w.above = append(w.above, place{device: w.stat.Dev, inode: w.stat.Ino, offset: offset})
	return w.goTo(fd)
}

// leave goes back to the directory above.
func (w *walk) leave() error {
	last := w.above[len(w.above)-1]
	fd, err := unix.Openat(w.fd, "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the directory above: %w", err)
	}
	if err := w.goTo(fd); err != nil {
		return err
	}
	if w.stat.Dev != last.device || w.stat.Ino != last.inode {
		return errMoved
	}
	w.above = w.above[:len(w.above)-1]
	if _, err := unix.Seek(w.fd, last.offset, io.SeekStart); err != nil {
		return fmt.Errorf("go on in the directory above: %w", err)
	}
	return nil
}

// again begins with the first name of the present directory. It opens it for that: ext4 lists nothing after a seek to the end and back.
func (w *walk) again() error {
	fd, err := unix.Openat(w.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("list names again: %w", err)
	}
	return w.goTo(fd)
}

// goTo makes what is open the present directory.
func (w *walk) goTo(fd int) error {
	w.close()
	w.fd, w.unread = fd, nil
	if err := unix.Fstat(fd, &w.stat); err != nil {
		return fmt.Errorf("identify a directory: %w", err)
	}
	return nil
}
