package copier

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/csikittest/needs"
	"github.com/longshore-csi/longshore/csikittest/seeds"
)

// copyOfTree is a copy of a directory that a test interrupts.
type copyOfTree struct {
	testing.TB
	from, to string
}

func newCopyOfTree(t testing.TB) *copyOfTree {
	t.Helper()
	d := dirs(t, "from", "to")
	return &copyOfTree{TB: t, from: d[0], to: d[1]}
}

func (c *copyOfTree) job(step func(string)) *job {
	return &job{to: c.to, limits: small(), beforeStep: step}
}

func (c *copyOfTree) path(names ...string) string {
	return filepath.Join(append([]string{c.from}, names...)...)
}

func (c *copyOfTree) write(name string, size int) {
	c.Helper()
	must(c, os.MkdirAll(filepath.Dir(c.path(name)), 0o755), os.WriteFile(c.path(name), noise(uint64(len(name)), size), 0o640))
}

// again starts over.
func (c *copyOfTree) again() {
	c.Helper()
	must(c, os.RemoveAll(c.to), os.Mkdir(c.to, 0o700))
}

// finish copies and compares, and returns the bytes that were written.
func (c *copyOfTree) finish() int64 {
	c.Helper()
	j := c.job(nil)
	must(c, second(j.tree(c.Context(), c.from)))
	wantSameTree(c, c.from, c.to)
	return j.written
}

func TestTree(t *testing.T) {
	c, open := newCopyOfTree(t), descriptors(t)
	c.write("a/b/c/file", 300_000)
	c.write("a/empty", 0)
	c.write("a/tool", 5000)
	writeSparse(c, c.path("z.img"), 5<<20, block{1 << 20, 8192}, block{3 << 20, 4096})
	must(t, os.Link(c.path("a/tool"), c.path("tool")), os.Link(c.path("a/tool"), c.path("a/b/tool")),
		os.Symlink("/etc/passwd", c.path("absolute")), os.Symlink("missing", c.path("a/dangling")), os.Link(c.path("absolute"), c.path("z-absolute")),
		unix.Mkfifo(c.path("pipe"), 0o640), unix.Mknod(c.path("socket"), unix.S_IFSOCK|0o600, 0),
		os.Mkdir(c.path("nothing"), 0o500), unix.Chmod(c.path("a/b"), 0o1777), unix.Chmod(c.path("a/tool"), 0o4755), unix.Chmod(c.path("z.img"), 0o400),
		unix.Setxattr(c.path("a"), "user.color", []byte("red"), 0), unix.Setxattr(c.path("a/tool"), "user.empty", nil, 0),
		unix.Setxattr(c.path("a/b"), "system.posix_acl_default", acl(7), 0), unix.Setxattr(c.path("a/tool"), "system.posix_acl_access", acl(8), 0),
		unix.UtimesNanoAt(unix.AT_FDCWD, c.path("a/dangling"), []unix.Timespec{{Sec: 1, Nsec: 2}, {Sec: 3, Nsec: 4}}, unix.AT_SYMLINK_NOFOLLOW),
		unix.UtimesNanoAt(unix.AT_FDCWD, c.path("a/b"), []unix.Timespec{{Sec: 5, Nsec: 6}, {Sec: 7, Nsec: 8}}, 0),
		unix.Chmod(c.from, 0o2751))
	if written := c.finish(); written != 300_000+5000+3*4096 {
		t.Errorf("%d bytes written", written)
	}
	wantClosed(t, open)
}

// TestTreeRootOnly copies what takes a privilege.
func TestTreeRootOnly(t *testing.T) {
	needRoot(t)
	c := newCopyOfTree(t)
	c.write("tool", 100)
	c.write("dir/file", 100)
	must(t, unix.Mknod(c.path("char"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))), unix.Mknod(c.path("block"), unix.S_IFBLK|0o660, int(unix.Mkdev(7, 300))),
		os.Lchown(c.path("tool"), 1000, 2000), unix.Chmod(c.path("tool"), 0o6755), unix.Setxattr(c.path("tool"), "security.capability", capability(), 0),
		os.Symlink("tool", c.path("symlink")), os.Lchown(c.path("symlink"), 3, 4), unix.Lsetxattr(c.path("symlink"), "trusted.of-link", []byte("1"), 0),
		unix.Lsetxattr(c.path("char"), "trusted.of-device", []byte("2"), 0),
		os.Chown(c.path("dir"), 0, 5), unix.Chmod(c.path("dir"), 0o2770), os.Chown(c.from, 6, 7))
	must(t, unix.Setxattr(c.to, "system.posix_acl_default", acl(9), 0), unix.Setxattr(c.to, "user.stale", nil, 0)) // is inherited, and must go
	c.finish()
}

// TestTreeProperty copies random trees.
func TestTreeProperty(t *testing.T) {
	seeds.Each(t, func(t *testing.T, seed uint64) {
		c, open := newCopyOfTree(t), descriptors(t)
		grow(t, seed, c.from, 120)
		c.finish()
		wantClosed(t, open)
	})
}

// linkedTree has each kind of entry, and files of several names in several directories.
func linkedTree(t testing.TB) *copyOfTree {
	c := newCopyOfTree(t)
	for _, name := range []string{"a/1", "a/b/2", "a/b/3", "c/4", "c/5"} {
		c.write(name, 70_000)
	}
	c.write("a/big", 600_000)
	for i, name := range []string{"a/b/link", "b-link", "c/link", "d"} {
		must(t, os.Link(c.path("a/1"), c.path(name)), os.Symlink(name, c.path(fmt.Sprintf("c/s%d", i))))
	}
	must(t, unix.Mkfifo(c.path("a/pipe"), 0o600), os.Link(c.path("a/pipe"), c.path("c/pipe")), os.Mkdir(c.path("c/empty"), 0o500),
		unix.Setxattr(c.path("c"), "user.color", []byte("red"), 0), unix.Setxattr(c.path("a"), "system.posix_acl_default", acl(7), 0),
		unix.Chmod(c.path("a/b"), 0o1755), unix.Chmod(c.path("c/4"), 0o400))
	if os.Geteuid() == 0 {
		must(t, os.Chown(c.path("c/4"), 1000, 1000), os.Chown(c.path("c"), 1000, 1000))
	}
	return c
}

// TestTreeCancel cancels at each step, removes what the copy left, and copies again.
func TestTreeCancel(t *testing.T) {
	needs.Time(t)
	c, open, seen := linkedTree(t), descriptors(t), map[string]bool{}
	for number := 1; ; number++ {
		c.again()
		step := cancelAt(t, number, func(ctx context.Context, step func(string)) {
			if _, err := c.job(step).tree(ctx, c.from); err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("step %d: error %v, want context.Canceled", number, err)
			}
		})
		wantClosed(t, open)
		if step == "" {
			break
		}
		seen[step] = true
	}
	for _, step := range []string{"mkdir", "create", "symlink", "link", "mknod", "copy", "set attribute", "chmod", "times", "sync"} {
		if !seen[step] {
			t.Errorf("step %q was never reached", step)
		}
	}
	wantSameTree(t, c.from, c.to)
}

// TestTornTree: a file that is written to while it is copied makes the tree torn, one that is complete or not begun does not.
func TestTornTree(t *testing.T) {
	for _, write := range []struct {
		reason, file string
		want         bool
	}{{"in the middle of its copy", "b", true}, {"after its copy", "a", false}, {"before its copy", "c", false}} {
		c, copies := newCopyOfTree(t), 0
		for _, name := range []string{"a", "b", "c"} {
			c.write(name, 200_000)
			must(t, os.Chtimes(c.path(name), time.Unix(1, 0), time.Unix(1, 0)))
		}
		j := c.job(func(step string) {
			if step != "copy" {
				return
			}
			if copies++; copies == 6 { // of b
				writeAt(t, c.path(write.file), 0, noise(3, 100))
			}
		})
		j.noShare = true
		r, err := j.tree(t.Context(), c.from)
		must(t, err)
		if r.Torn != write.want {
			t.Errorf("written to %s: torn %t", write.reason, r.Torn)
		}
	}
}

// TestLinks: the table forgets a file with its last name.
func TestLinks(t *testing.T) {
	c := linkedTree(t)
	table := links{}
	walk(t, c.from, ".", func(name, path string, st *unix.Stat_t) {
		if _, ok := table[inodeOf(st)]; ok {
			table.count(st)
		} else if kind(st) != unix.S_IFDIR {
			table.note(st, name)
		}
		if name == "b-link" && len(table) == 0 {
			t.Error("a file is forgotten that has more names")
		}
	})
	if len(table) != 0 {
		t.Errorf("%d files are still remembered", len(table))
	}
}

func contents(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	return string(data)
}
