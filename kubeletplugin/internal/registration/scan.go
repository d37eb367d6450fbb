package registration

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// socketsFound has the sockets below a directory, by path.
type socketsFound map[string]Identity

// scan reads root and all directories below it. What vanishes while it reads
// does not exist; any other error makes the whole result unusable, because a
// socket that could not be seen is not a socket that is gone.
func scan(root string, sockets socketsFound) (dirs []string, err error) {
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist) && path != root:
			return nil
		case err != nil:
			return err
		case path != root && strings.HasPrefix(entry.Name(), "."):
			return skip(entry)
		case entry.IsDir():
			dirs = append(dirs, path)
			return nil
		}
		id, ok, err := identify(path)
		if ok {
			sockets[path] = id
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read registration directory %q: %w", root, err)
	}
	return dirs, nil
}

func skip(entry fs.DirEntry) error {
	if entry.IsDir() {
		return fs.SkipDir
	}
	return nil
}

// identify reports whether path is a socket, and which. A link to a socket is
// followed, as the kubelet does; one that leads nowhere is no socket, and must
// not keep the others from being seen.
func identify(path string) (id Identity, ok bool, err error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP) {
		return Identity{}, false, nil
	}
	if err != nil {
		return Identity{}, false, err
	}
	stat, isStat := info.Sys().(*syscall.Stat_t)
	if !isStat || info.Mode().Type() != fs.ModeSocket {
		return Identity{}, false, nil
	}
	return Identity{Device: uint64(stat.Dev), Inode: stat.Ino, Modified: info.ModTime().UnixNano()}, true, nil //nolint:unconvert // the type of Dev depends on the platform
}

// tracker derives generations from the sockets found.
type tracker struct {
	serial uint64
	known  map[string]Generation
}

// change is the difference between two scans of the directories. A socket that
// is superseded is in added only, with the path of its predecessor.
type change struct{ added, gone []Generation }

// update compares the sockets seen now with those known. A socket at one of
// removedPaths, which an event has reported as removed since, is a new one even
// if its identity is the same, for inode numbers are used again.
func (t *tracker) update(seen socketsFound, removedPaths map[string]bool) change {
	var c change
	if t.known == nil {
		t.known = map[string]Generation{}
	}
	for path, gen := range t.known {
		if _, ok := seen[path]; !ok {
			c.gone = append(c.gone, gen)
			delete(t.known, path)
		}
	}
	for path, id := range seen {
		if old, ok := t.known[path]; ok && old.Identity == id && !removedPaths[path] {
			continue
		}
		t.serial++
		t.known[path] = Generation{Path: path, Serial: t.serial, Identity: id}
		c.added = append(c.added, t.known[path])
	}
	return c
}
