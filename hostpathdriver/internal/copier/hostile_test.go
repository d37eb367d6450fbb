package copier

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/csikittest/needs"
)

// swap exchanges what two names stand for.
func swap(t testing.TB, a, b string) {
	t.Helper()
	must(t, unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE))
}

// TestSwapAttack exchanges a directory and a file for symbolic links that lead
// outside, at each step of the copy, in the source and in the destination. What
// is outside is neither read nor changed.
func TestSwapAttack(t *testing.T) {
	needs.Time(t)
	const secret = "secret of the machine"
	if unix.Access("/dev/shm", unix.W_OK) == nil {
		t.Setenv("TMPDIR", "/dev/shm") // hundreds of copies that are synced
	}
	for name, victim := range map[string]string{"Directory": "d", "Nested": "d/e", "File": "d/file", "LastFile": "z", "Above": "d/f/g"} {
		for side := range 2 {
			t.Run(name+[]string{"Source", "Destination"}[side], func(t *testing.T) {
				c, d := newCopyOfTree(t), dirs(t, "outside")
				outside := d[0]
				for _, file := range []string{"d/file", "d/e/file", "d/f/g/h/i/j/file", "d/f/g/h/i/z", "d/f/g/h/z", "d/f/g/z", "z"} {
					c.write(file, 30_000)
				}
				must(t, os.Link(c.path("d/e/file"), c.path("z2")))
				for _, file := range []string{"file", "z", "e/file", "h/file", "h/z", "h/i/file", "h/i/j/file", "h/i/z"} {
					must(t, os.MkdirAll(filepath.Dir(filepath.Join(outside, file)), 0o755), os.WriteFile(filepath.Join(outside, file), []byte(secret), 0o644))
				}
				want := describe(t, outside)
				for number := 1; ; number++ {
					c.again()
					attacked := filepath.Join([]string{c.from, c.to}[side], victim)
					where, done := outside, false
					if strings.HasSuffix(victim, "file") || victim == "z" {
						where = filepath.Join(outside, "file")
					}
					where, err := filepath.Rel(filepath.Dir(attacked), where) // an absolute one is easier to see
					must(t, err)
					count := number
					_, err = c.job(func(string) {
						if count--; count == 0 {
							if _, err := os.Lstat(attacked); err == nil {
								must(t, os.Symlink(where, c.to+".link"))
								swap(t, attacked, c.to+".link")
							}
							done = true
						}
					}).tree(t.Context(), c.from)
					if !done {
						must(t, err)
						break
					}
					if err != nil && side == 0 {
						t.Errorf("step %d: a workload makes its copy fail: %v", number, err)
					}
					for name, text := range contentsBelow(t, c.to) {
						if strings.Contains(text, secret) {
							t.Errorf("step %d: %s has what is outside of the source", number, name)
						}
					}
					if diff := cmp.Diff(want, describe(t, outside)); diff != "" {
						t.Fatalf("step %d: outside of the destination (-want +got):\n%s", number, diff)
					}
					c.restore(attacked)
				}
			})
		}
	}
}

// restore puts back what an attack exchanged.
func (c *copyOfTree) restore(attacked string) {
	c.Helper()
	_, err := os.Lstat(c.to + ".link")
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	must(c, err)
	swap(c, attacked, c.to+".link")
	must(c, os.Remove(c.to+".link"))
}

// contentsBelow reads all files below a directory.
func contentsBelow(t testing.TB, root string) map[string]string {
	t.Helper()
	files := map[string]string{}
	walk(t, root, ".", func(name, path string, st *unix.Stat_t) {
		if kind(st) == unix.S_IFREG {
			files[name] = contents(t, path)
		}
	})
	return files
}

// TestVanishingSource: what is removed while it is copied is left out, and the
// rest is copied.
func TestVanishingSource(t *testing.T) {
	for number := 1; ; number += 3 {
		c, count := newCopyOfTree(t), number
		for _, file := range []string{"a/b/c/file", "a/b/file", "a/file", "z"} {
			c.write(file, 70_000)
		}
		_, err := c.job(func(string) {
			if count--; count == 0 {
				must(t, os.RemoveAll(c.path("a")))
			}
		}).tree(t.Context(), c.from)
		must(t, err)
		if contents(t, c.path("z")) != contents(t, filepath.Join(c.to, "z")) {
			t.Errorf("removed at step %d: the rest is not copied", number)
		}
		if count > 0 {
			break
		}
	}
}

// TestVanishingDestination: the volume is deleted while it is populated.
func TestVanishingDestination(t *testing.T) {
	needs.Time(t)
	for number := 1; ; number += 3 {
		c, count, open := linkedTree(t), number, descriptors(t)
		_, err := c.job(func(string) {
			if count--; count == 0 {
				must(t, os.Rename(c.to, c.to+".trash"))
			}
		}).tree(t.Context(), c.from)
		wantClosed(t, open)
		if count > 0 {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("step %d: error %v, want fs.ErrNotExist", number, err)
		}
	}
}

// TestTreeRefuses: what cannot be copied is an error.
func TestTreeRefuses(t *testing.T) {
	top := dirs(t, "from", "from/a", "from/a/in", "to")
	dir := filepath.Dir(top[0])
	must(t, os.Symlink("to", filepath.Join(dir, "link")), os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	cases := map[string]struct {
		reason, from, to string
		want             error
	}{
		"Missing":    {reason: "no source", from: "missing", to: "to", want: fs.ErrNotExist},
		"NoTarget":   {reason: "a deleted volume is not made again", from: "from", to: "missing", want: fs.ErrNotExist},
		"Link":       {reason: "it may lead anywhere", from: "link", to: "to", want: unix.ENOTDIR},
		"ToLink":     {reason: "it may lead anywhere", from: "from", to: "link", want: unix.ENOTDIR},
		"File":       {reason: "no directory", from: "file", to: "to", want: unix.ENOTDIR},
		"Itself":     {reason: "nothing to do", from: "from", to: "from"},
		"NotEmpty":   {reason: "what an interrupted copy left is for the caller to remove", from: "to", to: "from", want: unix.ENOTEMPTY},
		"IntoItself": {reason: "it would never end", from: "from", to: "from/a/in"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			open := descriptors(t)
			_, err := Tree(t.Context(), filepath.Join(dir, c.from), filepath.Join(dir, c.to))
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("%s: error %v, want %v", c.reason, err, c.want)
			}
			wantClosed(t, open)
		})
	}
}

// TestWideTree holds three names at a time of a directory with many.
func TestWideTree(t *testing.T) {
	c := newCopyOfTree(t)
	for i := range 200 {
		c.write("d/"+strconv.Itoa(i*7919%1000), i)
	}
	c.finish()
}

// TestDeepTree: no path of it would be short enough for a system call, and few
// of its directories are open at a time.
func TestDeepTree(t *testing.T) {
	needs.Time(t)
	const depth = 600
	name := strings.Repeat("n", 50)
	c := newCopyOfTree(t)
	before := descriptors(t)
	bottom := deepen(t, c.from, name, depth)
	must(t, unix.Linkat(int(bottom.Fd()), "file", unix.AT_FDCWD, c.path("z-link"), 0))
	bottom.Close()
	j, open := c.job(nil), 0
	j.limits.open = 8
	j.beforeStep = func(string) { open = max(open, descriptors(t)) }
	must(t, second(j.tree(t.Context(), c.from)))
	if limit := before + 2*9 + 12; open > limit {
		t.Errorf("%d descriptors were open, want at most %d", open, limit)
	}
	wantSameDepth(t, c.from, c.to, name, depth)
	wantClosed(t, before)
}

// deepen makes a chain of directories with a file at its end.
func deepen(t testing.TB, root, name string, depth int) *os.File {
	t.Helper()
	dir, err := os.Open(root)
	must(t, err)
	for range depth {
		must(t, unix.Mkdirat(int(dir.Fd()), name, 0o751))
		fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		must(t, err)
		dir.Close()
		dir = os.NewFile(uintptr(fd), name)
	}
	fd, err := unix.Openat(int(dir.Fd()), "file", unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	must(t, err)
	_, err = unix.Write(fd, []byte("deep"))
	must(t, err, unix.Close(fd))
	return dir
}

// wantSameDepth goes down two chains at once.
func wantSameDepth(t testing.TB, from, to, name string, depth int) {
	t.Helper()
	var st [2]unix.Stat_t
	for i, root := range []string{from, to} {
		dir, err := os.Open(root)
		must(t, err)
		for range depth {
			fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			must(t, err)
			dir.Close()
			dir = os.NewFile(uintptr(fd), name)
			var level unix.Stat_t
			must(t, unix.Fstat(fd, &level))
			if level.Mode != unix.S_IFDIR|0o751 {
				t.Fatalf("a directory below %s has mode %o", root, level.Mode)
			}
		}
		must(t, unix.Fstatat(int(dir.Fd()), "file", &st[i], 0))
		dir.Close()
	}
	var link unix.Stat_t
	must(t, unix.Lstat(filepath.Join(to, "z-link"), &link))
	if st[0].Mtim != st[1].Mtim || st[1].Size != 4 || st[1].Nlink != 2 || st[1].Ino != link.Ino {
		t.Errorf("at the bottom: %+v, want %+v", st[1], st[0])
	}
}
