package contents

import (
	"context"
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// Usage is what a tree takes on its file system.
type Usage struct {
	Bytes, Inodes int64
}

// UsageOf adds up what a file, or a directory and all below it, take on their file system; see walk for what it costs.
// A file of several names counts in parts, of which all are in the tree: no one outside of it can make a link to the file. What vanishes meanwhile does not count.
func UsageOf(ctx context.Context, root string) (Usage, error) {
	w, err := newWalk(root)
	if err != nil {
		return Usage{}, err
	}
	defer w.close()
	var total totals
	total.add(&w.stat)
	for done := !w.isDirectory(); !done && err == nil; {
		if err = ctx.Err(); err == nil {
			done, err = total.step(w)
		}
	}
	if err != nil {
		return Usage{}, fmt.Errorf("measure %s, %d levels below it: %w", root, len(w.above), err)
	}
	return Usage{Bytes: total.bytes, Inodes: int64(math.Round(total.inodes))}, nil
}

// totals are the sums of UsageOf.
type totals struct {
	bytes  int64
	inodes float64
}

// add adds a name.
func (t *totals) add(stat *unix.Stat_t) {
	names := max(1, int64(stat.Nlink))
	if stat.Mode&unix.S_IFMT == unix.S_IFDIR {
		names = 1 // the links of a directory are those of the directories in it
	}
	t.bytes += stat.Blocks * 512 / names
	t.inodes += 1 / float64(names)
}

// step looks at the next name, or goes back to the directory above.
func (t *totals) step(w *walk) (done bool, err error) {
	name, offset, err := w.next()
	switch {
	case err != nil:
		return false, err
	case name == "" && len(w.above) == 0:
		return true, nil
	case name == "":
		return false, w.leave()
	}
	var stat unix.Stat_t
	err = unix.Fstatat(w.fd, name, &stat, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("measure %.64q: %w", name, err)
	}
	t.add(&stat)
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR || stat.Dev != w.stat.Dev {
		return false, nil
	}
	return false, w.enter(name, offset)
}
