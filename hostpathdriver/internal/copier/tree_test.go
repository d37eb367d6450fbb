package copier

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/needs"
)

// copyOfTree is a copy of a directory that a test interrupts.
type copyOfTree struct {
	testing.TB
	from, to, progress string
}

func newCopyOfTree(t testing.TB) *copyOfTree {
	t.Helper()
	d := dirs(t, "from", "to")
	return &copyOfTree{TB: t, from: d[0], to: d[1], progress: d[1] + ".progress"}
}

func (c *copyOfTree) options(step func(string)) Options {
	return Options{Progress: c.progress, Step: step, limits: small()}
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
	must(c, os.RemoveAll(c.to), os.Mkdir(c.to, 0o700), Forget(c.progress))
}

func (c *copyOfTree) run() Result {
	c.Helper()
	r, err := Tree(c.Context(), c.from, c.to, c.options(nil))
	must(c, err)
	return r
}

// finish copies the rest and compares.
func (c *copyOfTree) finish() int64 {
	c.Helper()
	r := c.run()
	wantSameTree(c, c.from, c.to)
	return r.Written
}

// done is where the last checkpoint is.
func (c *copyOfTree) done() progress {
	c.Helper()
	source, err := os.Open(c.from)
	must(c, err)
	defer source.Close()
	target, err := os.Open(c.to)
	must(c, err)
	defer target.Close()
	of, err := newTask("tree", c.from, c.to, source, target)
	must(c, err)
	return load(c.progress, of)
}

// before reports whether a path of the source is copied at a checkpoint, and how
// much of it if it is not.
func before(p progress, name string) (bool, int64) {
	switch slices.Compare(strings.Split(name, "/"), strings.Split(string(p.Path), "/")) {
	case -1:
		return p.Path != nil, 0
	case 0:
		if p.Partial {
			return false, p.File.At
		}
		return true, 0
	}
	below := !p.Partial && strings.HasPrefix(name, string(p.Path)+"/") // of a directory that is complete
	return p.Complete || below, 0
}

// eachFile calls a function for the first name of each file with data.
func (c *copyOfTree) eachFile(root string, call func(name, path string, st *unix.Stat_t)) {
	c.Helper()
	seen := map[uint64]bool{}
	walk(c, root, ".", func(name, path string, st *unix.Stat_t) {
		if kind(st) == unix.S_IFREG && !seen[st.Ino] {
			seen[st.Ino] = true
			call(name, path, st)
		}
	})
}

// powerCut loses what the progress file does not vouch for.
func (c *copyOfTree) powerCut() {
	c.Helper()
	p := c.done()
	c.eachFile(c.to, func(name, path string, st *unix.Stat_t) {
		if ok, at := before(p, name); !ok {
			must(c, os.Chmod(path, 0o600), os.Truncate(path, at))
			writeAt(c, path, at, noise(99, 5000))
		}
	})
}

// left is the data that a checkpoint leaves to do.
func (c *copyOfTree) left() (bytes int64) {
	c.Helper()
	p := c.done()
	c.eachFile(c.from, func(name, path string, st *unix.Stat_t) {
		if ok, at := before(p, name); !ok {
			bytes += allocatedBefore(c, path, st.Size) - allocatedBefore(c, path, at)
		}
	})
	return bytes
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
	if r := c.run(); r != (Result{}) {
		t.Errorf("the call once more: %+v", r)
	}
}

// TestTreeRootOnly has what takes a privilege.
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

// TestTreeProperty copies random trees, with a crash at a random step now and
// then, after which what was not synced is lost.
func TestTreeProperty(t *testing.T) {
	needs.Time(t)
	s := seed(t)
	r := rand.New(rand.NewPCG(s, 1))
	for round := range uint64(8) {
		c, open := newCopyOfTree(t), descriptors(t)
		grow(t, s+round, c.from, 120)
		crashes := 0
		for ; ; crashes++ {
			left := c.left()
			var written int64
			step := crashAt(1+r.IntN(900), func(step func(string)) {
				result, err := Tree(t.Context(), c.from, c.to, c.options(step))
				must(t, err)
				written = result.Written
			})
			if step == "" {
				if written > left {
					t.Errorf("round %d: %d bytes written, %d were left", round, written, left)
				}
				break
			}
			wantClosed(t, open)
			c.powerCut()
		}
		t.Logf("round %d: %d crashes", round, crashes)
		wantSameTree(t, c.from, c.to)
		wantClosed(t, open)
	}
}

// crashTree has each kind of entry, a file of more than one checkpoint, and
// names of one file on both sides of most checkpoints.
func crashTree(t testing.TB) *copyOfTree {
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

// TestTreeCrash ends a copy at each of its steps, loses what was not synced,
// and goes on: nothing before the last checkpoint is written again.
func TestTreeCrash(t *testing.T) {
	needs.Time(t)
	c, open, seen := crashTree(t), descriptors(t), map[string]bool{}
	for number := 1; ; number++ {
		c.again()
		step := crashAt(number, func(step func(string)) { must(t, second(Tree(t.Context(), c.from, c.to, c.options(step)))) })
		if step == "" {
			t.Logf("%d crashes", number-1)
			break
		}
		seen[step] = true
		wantClosed(t, open)
		c.powerCut()
		left := c.left()
		if written := c.finish(); written > left {
			t.Fatalf("step %d, %s: %d bytes written, %d were left", number, step, written, left)
		}
	}
	for _, step := range []string{"mkdir", "create", "symlink", "link", "mknod", "copy", "set attribute", "chmod", "times", "sync", "rename progress"} {
		if !seen[step] {
			t.Errorf("step %q was never reached", step)
		}
	}
	wantClosed(t, open)
}

// TestTreeCancel cancels at each step: no byte is written twice.
func TestTreeCancel(t *testing.T) {
	needs.Time(t)
	c := crashTree(t)
	total := c.finish()
	for number := 1; ; number++ {
		c.again()
		var first Result
		step := cancelAt(t, number, func(ctx context.Context, step func(string)) {
			var err error
			first, err = Tree(ctx, c.from, c.to, c.options(step))
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("step %d: error %v, want context.Canceled", number, err)
			}
		})
		if step == "" {
			break
		}
		if rest := c.run().Written; first.Written+rest != total {
			t.Errorf("step %d, %s: %d and %d bytes written, want %d together", number, step, first.Written, rest, total)
		}
	}
	wantSameTree(t, c.from, c.to)
}

// TestLinks: the table forgets a file with its last name.
func TestLinks(t *testing.T) {
	c := crashTree(t)
	for name, passed := range map[string]bool{"Copied": false, "Passed": true} {
		table := links{}
		walk(t, c.from, ".", func(name, path string, st *unix.Stat_t) {
			if known, ok := table[inodeOf(st)]; ok && !passed {
				table.count(known)
			} else if kind(st) != unix.S_IFDIR {
				table.note(st, func() string { return name })
			}
			if name == "b-link" && len(table) == 0 {
				t.Error("a file is forgotten that has more names")
			}
		})
		if len(table) != 0 {
			t.Errorf("%s: %d files are still remembered", name, len(table))
		}
	}
}

// TestTreeTornProgress starts over with what an earlier call left.
func TestTreeTornProgress(t *testing.T) {
	c := crashTree(t)
	total := c.finish()
	for _, contents := range []string{"", "{", "null", "[]", `{"task":{}}`} {
		must(t, os.WriteFile(c.progress, []byte(contents), 0o600))
		if written := c.finish(); written != total {
			t.Errorf("progress %q: %d bytes written, want all %d", contents, written, total)
		}
	}
}

// TestTreeChanges changes the source between two calls, of which the first
// ended in the middle of c/m, after a checkpoint there.
func TestTreeChanges(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(c *copyOfTree)
		differ []string // entries that are as they were before
	}{
		"Nothing": {reason: "it goes on", change: func(*copyOfTree) {}},
		"NewAhead": {reason: "what is new ahead is copied", change: func(c *copyOfTree) {
			c.write("c/n", 100)
			c.write("d/e/f", 100)
		}, differ: []string{"."}},
		"GoneAhead": {reason: "what is gone ahead is not missed", change: func(c *copyOfTree) { must(c, os.Remove(c.path("z"))) }, differ: []string{"."}},
		"PartGone":  {reason: "a part of what is gone stays, as all that was copied", change: func(c *copyOfTree) { must(c, os.Remove(c.path("c/m"))) }, differ: []string{"c", "c/m"}},
		"PartReplaced": {reason: "another file of the same name", change: func(c *copyOfTree) {
			must(c, os.Rename(c.path("c/m"), c.path("z2")))
			must(c, os.WriteFile(c.path("c/m"), noise(55, 600_000), 0o600))
		}, differ: []string{".", "c"}},
		"CopyOfPartReplaced": {reason: "another file in the destination", change: func(c *copyOfTree) {
			must(c, os.Remove(c.to+"/c/m"), os.WriteFile(c.to+"/c/m", noise(77, 500_000), 0o600))
		}},
		"PartShrunk": {reason: "a smaller file", change: func(c *copyOfTree) { must(c, os.Truncate(c.path("c/m"), 1000)) }},
		"PartIsDirectory": {reason: "another kind", change: func(c *copyOfTree) {
			must(c, os.Remove(c.path("c/m")))
			c.write("c/m/n/o", 1000)
		}, differ: []string{"c"}},
		"PartIsSymlink": {reason: "another kind", change: func(c *copyOfTree) {
			must(c, os.Remove(c.path("c/m")), os.Symlink("..", c.path("c/m")))
		}, differ: []string{"c"}},
		"ParentIsFile": {reason: "another kind of what is on the way", change: func(c *copyOfTree) {
			must(c, os.RemoveAll(c.path("c")))
			c.write("c", 1000)
		}, differ: []string{"."}},
		"LinkedAnew": {reason: "a name of a file that the copy does not have under the first", change: func(c *copyOfTree) {
			must(c, os.Remove(c.path("a")))
			c.write("a", 2000)
			must(c, os.Link(c.path("a"), c.path("z2")))
		}, differ: []string{".", "a", "z2"}},
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			c := newCopyOfTree(t)
			c.write("a", 1000)
			c.write("c/m", 500_000)
			c.write("z", 1000)
			must(t, os.Link(c.path("a"), c.path("z-a")))
			copies := 0
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			_, err := Tree(ctx, c.from, c.to, c.options(func(step string) {
				if copies++; step == "copy" && copies > 20 {
					cancel()
				}
			}))
			if p := c.done(); !errors.Is(err, context.Canceled) || string(p.Path) != "c/m" || !p.Partial {
				t.Fatalf("error %v, progress %+v", err, p)
			}
			change.change(c)
			c.run()
			got, want := describe(t, c.to), describe(t, c.from)
			for _, name := range change.differ {
				delete(got, name)
				delete(want, name)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", change.reason, diff)
			}
			if want, got := contents(t, c.path("z-a")), contents(t, filepath.Join(c.to, "z-a")); want != got {
				t.Errorf("%s: the file with two names differs", change.reason)
			}
			if name == "LinkedAnew" && contents(t, filepath.Join(c.to, "z2")) != contents(t, c.path("z2")) {
				t.Errorf("%s: the contents are of the file that was there before", change.reason)
			}
		})
	}
}

func contents(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	return string(data)
}
