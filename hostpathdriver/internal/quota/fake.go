package quota

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// fakeBlock is what a Fake rounds limits up to.
const fakeBlock = 4096

// Fake is a Quotas without privileges, for tests. It knows limits, and measures
// directories by walking through them, but it enforces none. It is safe for
// concurrent use, by one process.
type Fake struct {
	// Roots are the directories below which limits are enforced.
	Roots []string

	mu     sync.Mutex
	limits map[identity]int64
	off    bool
	fail   error
	calls  []string
}

// identity is what makes a directory the same one under any path, and another
// one than one that was removed before.
type identity struct {
	major, minor uint32
	inode        uint64
	birth        unix.StatxTimestamp
}

var _ Quotas = (*Fake)(nil)

// Enforced implements Quotas.
func (f *Fake) Enforced(path string) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := identify(path); err != nil {
		return false, fmt.Errorf("look for quotas: %w", err)
	}
	return f.enforced(path), nil
}

func (f *Fake) enforced(path string) bool {
	return !f.off && slices.ContainsFunc(f.Roots, func(root string) bool {
		relative, err := filepath.Rel(root, path)
		return err == nil && relative != ".." && !strings.HasPrefix(relative, "../")
	})
}

// Limit implements Quotas.
func (f *Fake) Limit(path string, bytes int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.limit(path, bytes)
	f.record(err, "limit %s %d", path, bytes)
	if err != nil {
		return fmt.Errorf("limit %s to %d bytes: %w", path, bytes, err)
	}
	return nil
}

// record notes a call.
func (f *Fake) record(err error, format string, args ...any) {
	call := fmt.Sprintf(format, args...)
	if err != nil {
		call += " failed"
	}
	f.calls = append(f.calls, call)
}

func (f *Fake) limit(path string, bytes int64) error {
	if err := errors.Join(f.fail, checkBytes(bytes)); err != nil {
		return err
	}
	id, err := identify(path)
	if err != nil {
		return err
	}
	if !f.enforced(path) {
		return ErrUnavailable
	}
	if _, known := f.limits[id]; !known {
		entries, err := os.ReadDir(path)
		if err == nil && len(entries) > 0 {
			err = ErrNotEmpty
		}
		if err != nil {
			return err
		}
	}
	if f.limits == nil {
		f.limits = map[identity]int64{}
	}
	f.limits[id] = int64(roundUp(bytes, fakeBlock))
	return nil
}

// Release implements Quotas.
func (f *Fake) Release(path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.release(path)
	f.record(err, "release %s", path)
	if err != nil {
		return fmt.Errorf("release the limit of %s: %w", path, err)
	}
	return nil
}

func (f *Fake) release(path string) error {
	id, err := identify(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := errors.Join(f.fail, err); err != nil {
		return err
	}
	if _, known := f.limits[id]; known {
		f.limits[id] = 0
	}
	return nil
}

// Usage implements Quotas.
func (f *Fake) Usage(path string) (u Usage, ok bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id, err := identify(path)
	if err := errors.Join(f.fail, err); err != nil {
		return Usage{}, false, fmt.Errorf("measure what is in %s: %w", path, err)
	}
	limit := f.limits[id]
	if limit == 0 || f.off {
		return Usage{}, false, nil
	}
	u, err = measure(path)
	u.Limit = limit
	return u, err == nil, err
}

// measure adds up files and directories, each once.
func measure(path string) (Usage, error) {
	var u Usage
	seen := map[uint64]bool{}
	err := filepath.WalkDir(path, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var stat unix.Stat_t
		if err := unix.Lstat(name, &stat); err != nil {
			return &os.PathError{Op: "lstat", Path: name, Err: err}
		}
		if !seen[stat.Ino] {
			seen[stat.Ino] = true
			u.Bytes += stat.Blocks * sector
			u.Inodes++
		}
		return nil
	})
	return u, err
}

// Fail makes every following call but Enforced fail; nil ends it.
func (f *Fake) Fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = err
}

// Switch turns quotas off, as if the file systems were mounted without them, or
// on again.
func (f *Fake) Switch(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.off = !on
}

// Calls returns the calls of Limit and Release so far, in order. Those that
// answered an error end in " failed".
func (f *Fake) Calls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// identify refuses what is not a directory, and links to one.
func identify(path string) (identity, error) {
	var stat unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_TYPE|unix.STATX_INO|unix.STATX_BTIME, &stat)
	if err == nil && stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		err = unix.ENOTDIR
	}
	if err != nil {
		return identity{}, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return identity{major: stat.Dev_major, minor: stat.Dev_minor, inode: stat.Ino, birth: stat.Btime}, nil
}
