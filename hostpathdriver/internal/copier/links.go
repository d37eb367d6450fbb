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
	left uint64 // names that may still come
	stat unix.Stat_t
}

// links knows the files whose other names may still come, and no others: its
// size is all that a copy needs in memory for each file.
type links map[inode]*link

// note takes a name that is copied, in this call or an earlier one.
func (l links) note(st *unix.Stat_t, name func() string) {
	if st.Nlink < 2 {
		return
	}
	if known, ok := l[inodeOf(st)]; ok {
		l.count(known)
		return
	}
	l[inodeOf(st)] = &link{path: name(), left: uint64(st.Nlink) - 1, stat: *st} //nolint:unconvert // not 64 bits everywhere
}

func (l links) count(known *link) {
	if known.left--; known.left == 0 {
		delete(l, inodeOf(&known.stat))
	}
}

// link makes one more name of a file that is copied already. It reports whether
// it could: the copy is gone, or was made by an earlier call of what is
// another file by now.
func (t *tree) link(dir *os.File, name string, st *unix.Stat_t) (bool, error) {
	known, ok := t.links[inodeOf(st)]
	if st.Nlink < 2 || !ok {
		return false, nil
	}
	parent, base := path.Split(known.path)
	copied, err := descend(t.target, path.Clean(parent))
	if err != nil {
		return false, t.links.drop(known, err)
	}
	defer copied.Close()
	var have unix.Stat_t
	if err := unix.Fstatat(int(copied.Fd()), base, &have, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return false, t.links.drop(known, err)
	}
	if !copyOf(&have, &known.stat) {
		return false, t.links.drop(known, fs.ErrNotExist)
	}
	err = t.place(dir, name, "link", func() error {
		return unix.Linkat(int(copied.Fd()), base, int(dir.Fd()), name, 0)
	})
	if err != nil {
		return false, fmt.Errorf("link to %s: %w", known.path, err)
	}
	t.links.count(known)
	return true, nil
}

func (l links) drop(known *link, err error) error {
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	delete(l, inodeOf(&known.stat))
	return nil
}

// copyOf reports whether a copy has what is copied last. There are file systems
// that know the time only in seconds.
func copyOf(have, want *unix.Stat_t) bool {
	return kind(have) == kind(want) && have.Size == want.Size &&
		have.Mtim.Sec == want.Mtim.Sec && (have.Mtim.Nsec == want.Mtim.Nsec || have.Mtim.Nsec == 0)
}
