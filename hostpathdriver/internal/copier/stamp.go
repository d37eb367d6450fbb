package copier

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Stamp is what a file looks like from outside, or a directory with all that is
// in it: as long as it stays the same, nobody has changed anything. It is of
// this run of the machine.
type Stamp string

// ErrUntold says that a file system cannot be trusted to tell of each change.
var ErrUntold = errors.New("its file system does not tell for sure when something is written")

// Mark takes the stamp from which on changes are looked for. steady says that
// each change from now on makes another one. A time is as coarse as the clock
// of the kernel that it is taken from: what was changed in the current tick may
// change again without a trace, and is not steady.
//
// A store through mmap has a trace only where it finds a clean page. So that of
// a directory writes all out first, and takes what was changed since for
// unsteady.
func Mark(ctx context.Context, path string) (s Stamp, steady bool, err error) {
	moment, err := coarseClock()
	if err != nil {
		return "", false, err
	}
	c := &census{flush: true}
	s, err = c.take(ctx, path)
	return s, settled(c.youngest, moment), err
}

// Look takes a stamp to be compared with that of Mark.
func Look(ctx context.Context, path string) (Stamp, error) {
	return new(census).take(ctx, path)
}

// settled reports whether what is changed at a moment, or behind it, gets another
// time than it has. There are file systems that know times in seconds.
func settled(changed, moment int64) bool {
	step := int64(1)
	if changed%int64(time.Second) == 0 {
		step = int64(time.Second)
	}
	return changed+step <= moment
}

// Tick is how long the clock of the kernel stands still.
func Tick() time.Duration {
	var resolution unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_REALTIME_COARSE, &resolution); err != nil {
		return 10 * time.Millisecond // the longest there is
	}
	return time.Duration(unix.TimespecToNsec(resolution))
}

// coarseClock reads the clock that times of files are taken from.
func coarseClock() (int64, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now); err != nil {
		return 0, fmt.Errorf("read the clock: %w", err)
	}
	return unix.TimespecToNsec(now), nil
}

// census looks at all that makes a stamp. What is changed behind its back
// changes the time of something that it has seen before: a directory is looked
// at before the names in it are read.
type census struct {
	stack

	flush    bool // what is in memory, of a directory, first
	digest   hash.Hash
	youngest int64 // time of the last change that it has seen
}

func (c *census) take(ctx context.Context, path string) (Stamp, error) {
	root, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer root.Close()
	st, err := status(root)
	if err != nil {
		return "", err
	}
	tree := kind(&st) == unix.S_IFDIR
	if err := checkTells(root, tree); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	c.digest = sha256.New()
	if tree {
		err = c.walk(ctx, root)
	} else {
		c.add("", &st)
	}
	if err != nil {
		return "", fmt.Errorf("look for changes in %s: %w", path, err)
	}
	return Stamp(hex.EncodeToString(c.digest.Sum(nil))), nil
}

// checkTells refuses what was not found to tell of changes: a write has to
// change the time of the file before it is done, and, where directories are in
// use, so has a store through mmap to a page that was written out. Memory is
// never written out.
func checkTells(file *os.File, tree bool) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &st); err != nil {
		return err
	}
	switch uint32(st.Type) { //nolint:gosec // magic numbers have 32 bits
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC:
		return nil
	case unix.TMPFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC:
		if !tree {
			return nil
		}
	}
	return fmt.Errorf("%w (type %#x)", ErrUntold, st.Type)
}

// walk goes through a tree in lexical order.
func (c *census) walk(ctx context.Context, root *os.File) error {
	limits := limits{}.orDefaults()
	c.source = root
	defer c.close()
	if c.flush {
		if err := unix.Syncfs(int(root.Fd())); err != nil {
			return fmt.Errorf("sync file system: %w", err)
		}
	}
	if err := c.enter("", root, limits.open); err != nil {
		return err
	}
	for len(c.levels) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := c.reopen(limits.open); err != nil {
			return fmt.Errorf("go back to %q: %w", c.path(""), err)
		}
		name, more, err := c.top().next(limits.names)
		if err == nil && more {
			err = c.entry(name, limits.open)
		}
		if err != nil {
			return fmt.Errorf("at %q: %w", c.path(name), err)
		}
		if !more {
			c.pop().close()
		}
	}
	return nil
}

// entry looks at a name of the topmost directory. One that vanishes has changed
// the time of the directory.
func (c *census) entry(name string, open int) error {
	found, err := openAt(c.top().source, name, unix.O_PATH)
	if vanished(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer found.Close()
	st, err := status(found)
	if err != nil {
		return err
	}
	if kind(&st) == unix.S_IFDIR {
		return c.enter(name, found, open)
	}
	c.add(name, &st)
	return nil
}

// enter looks at a directory and puts it on the stack.
func (c *census) enter(name string, found *os.File, open int) error {
	st, err := status(found)
	if err != nil {
		return err
	}
	c.add(name, &st)
	source, err := reopen(found, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	// Of a level that is passed the stack opens the source only.
	c.push(&level{name: name, source: source, passed: true}, open)
	return nil
}

func (c *census) add(name string, st *unix.Stat_t) {
	changed := unix.TimespecToNsec(st.Ctim)
	c.youngest = max(c.youngest, changed)
	fmt.Fprintf(c.digest, "%d %q %d %o %d %d\n", len(c.levels), name, st.Ino, st.Mode, st.Size, changed)
}

// stampsVersion changes with the meaning of a stamp.
const stampsVersion = 1

// marks is what a file of stamps says.
type marks struct {
	Version int              `json:"version"`
	Boot    string           `json:"boot"`
	Stamps  map[string]Stamp `json:"stamps"`
}

// SaveStamps replaces a file of stamps durably. Forget removes it. step is that
// of Options.
func SaveStamps(path string, stamps map[string]Stamp, step func(name string)) error {
	boot, err := bootID()
	if err == nil {
		j := &job{Options: Options{Progress: path, Step: step}}
		err = j.replace(marks{Version: stampsVersion, Boot: boot, Stamps: stamps})
	}
	if err != nil {
		return fmt.Errorf("write file of stamps: %w", err)
	}
	return nil
}

// LoadStamps reads a file of stamps. One that is missing, torn, or older than
// the machine is up has none: what was in memory when it went down is lost.
func LoadStamps(path string) map[string]Stamp {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	var found marks
	boot, err := bootID()
	if err != nil || json.Unmarshal(data, &found) != nil || found.Version != stampsVersion || found.Boot != boot {
		return nil
	}
	return found.Stamps
}

// bootID names this run of the machine.
func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}
