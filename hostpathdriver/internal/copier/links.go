package copier

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// inode is a file of the source.
type inode struct{ device, number uint64 }

func inodeOf(st *unix.Stat_t) inode {
	return inode{device: st.Dev, number: st.Ino}
}

// link is a file of several names of which one is copied.
type link struct {
	path string // of the copy, below the destination
	left uint64 // names that are not copied yet
}

// links has the files whose other names are still to come, and no others: its size is all that a copy needs in memory for each file.
type links map[inode]*link

// note takes the first name of a file.
func (l links) note(st *unix.Stat_t, name string) {
	if st.Nlink > 1 {
		l[inodeOf(st)] = &link{path: name, left: uint64(st.Nlink) - 1} //nolint:unconvert // not 64 bits everywhere
	}
}

// count takes a further name of a file.
func (l links) count(st *unix.Stat_t) {
	if known := l[inodeOf(st)]; known.left > 1 {
		known.left--
		return
	}
	delete(l, inodeOf(st))
}

// link makes one more name of a file that is copied already. It reports false if there is none, or the copy is gone.
func (t *tree) link(dir *os.File, name string, st *unix.Stat_t) (bool, error) {
	known, ok := t.links[inodeOf(st)]
	if st.Nlink < 2 || !ok {
		return false, nil
	}
	parent, base := path.Split(known.path)
	copied, err := descend(t.stack.target, path.Clean(parent))
	if err == nil {
		defer copied.Close()
		t.step("link")
		err = retryEINTR(func() error { return unix.Linkat(int(copied.Fd()), base, int(dir.Fd()), name, 0) })
	}
	if errors.Is(err, fs.ErrNotExist) {
		delete(t.links, inodeOf(st))
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("link to %s: %w", known.path, err)
	}
	t.links.count(st)
	return true, nil
}
