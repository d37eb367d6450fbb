package copier

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/needs"
)

// telling is a directory whose file system tells of each change in a tree.
func telling(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := Look(t.Context(), dir); errors.Is(err, ErrUntold) {
		return xfs(t, 320<<20)
	}
	return dir
}

// mark takes a steady stamp.
func mark(t testing.TB, path string) Stamp {
	t.Helper()
	for {
		s, steady, err := Mark(t.Context(), path)
		must(t, err)
		if steady {
			return s
		}
		time.Sleep(Tick())
	}
}

func look(t testing.TB, path string) Stamp {
	t.Helper()
	s, err := Look(t.Context(), path)
	must(t, err)
	return s
}

// TestStamps: whatever is changed, and however it is hidden, the stamp is
// another one. What only looks changes nothing.
func TestStamps(t *testing.T) {
	needs.Time(t)
	times := []unix.Timespec{{Sec: 1000}, {Sec: 1000}}
	cases := map[string]struct {
		reason string
		change func(t *testing.T, dir string)
		same   bool
		tree   bool // is no change of the file
	}{
		"Nothing": {reason: "nothing happens", change: func(*testing.T, string) {}, same: true},
		"Read": {reason: "reading is no change", same: true, change: func(t *testing.T, dir string) {
			_, err := os.ReadFile(dir + "/file")
			must(t, err, filepath.WalkDir(dir, func(_ string, _ fs.DirEntry, err error) error { return err }))
		}},
		"Write": {reason: "other contents", change: func(t *testing.T, dir string) { writeAt(t, dir+"/file", 4096, noise(1, 10)) }},
		"SameContents": {reason: "who writes the same writes", change: func(t *testing.T, dir string) {
			writeAt(t, dir+"/file", 0, noise(0, 10))
		}},
		"TimeSetBack": {reason: "the time of the contents can be set, that of the change cannot", change: func(t *testing.T, dir string) {
			writeAt(t, dir+"/file", 4096, noise(1, 10))
			must(t, unix.UtimesNanoAt(unix.AT_FDCWD, dir+"/file", times, 0))
		}},
		"Truncate": {reason: "another size", change: func(t *testing.T, dir string) { must(t, os.Truncate(dir+"/file", 100)) }},
		"Hole": {reason: "blocks are discarded", change: func(t *testing.T, dir string) {
			file, err := os.OpenFile(dir+"/file", os.O_RDWR, 0)
			must(t, err)
			must(t, unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096), file.Close())
		}},
		"Replaced": {reason: "another file with the same contents", change: func(t *testing.T, dir string) {
			must(t, os.WriteFile(dir+"/new", noise(0, 8192), 0o600), unix.UtimesNanoAt(unix.AT_FDCWD, dir+"/new", times, 0), os.Rename(dir+"/new", dir+"/file"))
		}},
		"Store": {reason: "a store to memory is a write", change: func(t *testing.T, dir string) {
			file, err := os.OpenFile(dir+"/file", os.O_RDWR, 0)
			must(t, err)
			memory, err := unix.Mmap(int(file.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			must(t, err)
			memory[7]++
			must(t, unix.Munmap(memory), file.Close())
		}},
		"Mode":      {reason: "attributes", change: func(t *testing.T, dir string) { must(t, os.Chmod(dir+"/file", 0o644)) }},
		"Attribute": {reason: "attributes", change: func(t *testing.T, dir string) { must(t, unix.Setxattr(dir+"/file", "user.color", []byte("red"), 0)) }},
		"Deep":      {reason: "far below", tree: true, change: func(t *testing.T, dir string) { writeAt(t, dir+deepest+"/file", 0, noise(1, 10)) }},
		"Create":    {reason: "a new name", tree: true, change: func(t *testing.T, dir string) { must(t, os.WriteFile(dir+"/a/new", nil, 0o600)) }},
		"Remove":    {reason: "a name is gone", tree: true, change: func(t *testing.T, dir string) { must(t, os.Remove(dir+deepest+"/file")) }},
		"Rename":    {reason: "another name", tree: true, change: func(t *testing.T, dir string) { must(t, os.Rename(dir+"/a/x", dir+"/a/y")) }},
		"Exchange": {reason: "other names", tree: true, change: func(t *testing.T, dir string) {
			must(t, unix.Renameat2(unix.AT_FDCWD, dir+"/a/x", unix.AT_FDCWD, dir+"/a/z", unix.RENAME_EXCHANGE))
		}},
		"ComeAndGone": {reason: "a name that was there meanwhile may have been copied", tree: true, change: func(t *testing.T, dir string) {
			must(t, os.Mkdir(dir+"/a/new", 0o700), os.Remove(dir+"/a/new"))
		}},
		"Link":    {reason: "one more name", tree: true, change: func(t *testing.T, dir string) { must(t, os.Link(dir+"/a/x", dir+"/a/link")) }},
		"Symlink": {reason: "another way", tree: true, change: func(t *testing.T, dir string) { must(t, os.Symlink("x", dir+"/a/link")) }},
	}
	base := telling(t)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(base, name)
			must(t, os.MkdirAll(dir+deepest, 0o700), os.WriteFile(dir+"/file", noise(0, 8192), 0o600),
				os.WriteFile(dir+"/a/x", nil, 0o600), os.WriteFile(dir+"/a/z", nil, 0o600), os.WriteFile(dir+deepest+"/file", nil, 0o600))
			tree, file := mark(t, dir), mark(t, dir+"/file")
			c.change(t, dir)
			if same := look(t, dir) == tree; same != c.same {
				t.Errorf("%s: stamp of the tree is the same %t, want %t", c.reason, same, c.same)
			}
			if same := look(t, dir+"/file") == file; same != (c.same || c.tree) {
				t.Errorf("%s: stamp of the file is the same %t", c.reason, same)
			}
		})
	}
}

// deepest is deeper than there are levels open at a time.
var deepest = "/a" + strings.Repeat("/d", 300)

// TestStoreToADirtyPage: the second store to a page has no trace as long as the
// page is dirty, so that a mark has to write it out first.
func TestStoreToADirtyPage(t *testing.T) {
	dir := telling(t)
	path := filepath.Join(dir, "file")
	must(t, os.WriteFile(path, noise(0, 4096), 0o600))
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer file.Close()
	memory, err := unix.Mmap(int(file.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	defer func() { must(t, unix.Munmap(memory)) }()
	for i := range 20 {
		memory[i]++
		before := mark(t, dir)
		memory[i]++
		if look(t, dir) == before {
			t.Fatalf("store %d left no trace", i)
		}
	}
}

// TestNoChangeInTheTickIsMissed: of a stamp that says that it is steady the
// next write shows, however soon it comes.
func TestNoChangeInTheTickIsMissed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(path, nil, 0o600))
	unsteady := 0
	for i := range 5000 {
		before, steady, err := Mark(t.Context(), path)
		must(t, err)
		if !steady {
			unsteady++
		}
		if steady || i%7 == 0 {
			writeAt(t, path, 0, []byte{byte(i)})
		}
		if steady && look(t, path) == before {
			t.Fatalf("write %d left no trace", i)
		}
	}
	if unsteady == 0 {
		t.Error("a file that was just written to is steady")
	}
}

func TestSettled(t *testing.T) {
	second := int64(time.Second)
	cases := map[string]struct {
		reason          string
		changed, moment int64
		want            bool
	}{
		"Before":       {reason: "the clock has moved on", changed: 5*second + 1, moment: 5*second + 2, want: true},
		"SameTick":     {reason: "the next change has the same time", changed: 5*second + 1, moment: 5*second + 1},
		"Future":       {reason: "the clock was set back", changed: 9*second + 1, moment: 5 * second},
		"WholeSeconds": {reason: "a file system that cuts off fractions gives it again", changed: 5 * second, moment: 6*second - 1},
		"NextSecond":   {reason: "and in the next second another one", changed: 5 * second, moment: 6 * second, want: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := settled(c.changed, c.moment); got != c.want {
				t.Errorf("%s: settled %t, want %t", c.reason, got, c.want)
			}
		})
	}
}

// TestUntold: what a file system is not known to tell, nobody relies on.
func TestUntold(t *testing.T) {
	memory := tmpfs(t, "")
	must(t, os.WriteFile(memory+"/file", nil, 0o600))
	for path, want := range map[string]error{
		memory: ErrUntold, memory + "/file": nil, "/proc/sys": ErrUntold, "/proc/uptime": ErrUntold,
		memory + "/missing": fs.ErrNotExist,
	} {
		if _, err := Look(t.Context(), path); !errors.Is(err, want) {
			t.Errorf("%s: error %v, want %v", path, err, want)
		}
	}
	file := mark(t, memory+"/file")
	writeAt(t, memory+"/file", 0, []byte("x"))
	if look(t, memory+"/file") == file {
		t.Error("a write to memory left no trace")
	}
}

// TestSavedStamps are those of this run of the machine, or none.
func TestSavedStamps(t *testing.T) {
	path := filepath.Join(t.TempDir(), "progress")
	want := map[string]Stamp{"a": "1", "b": "2"}
	var steps []string
	must(t, SaveStamps(path, map[string]Stamp{"old": "0"}, nil), SaveStamps(path, want, func(name string) { steps = append(steps, name) }))
	if got := LoadStamps(path); !maps.Equal(got, want) {
		t.Errorf("stamps %v, want %v", got, want)
	}
	if len(steps) == 0 {
		t.Error("no step was told")
	}
	whole := contents(t, path)
	boot, err := bootID()
	must(t, err)
	for name, content := range map[string]string{
		"another run of the machine": strings.ReplaceAll(whole, boot, "another"),
		"another version":            strings.ReplaceAll(whole, `"version":1`, `"version":2`),
		"torn":                       whole[:len(whole)/2],
		"empty":                      "",
	} {
		must(t, os.WriteFile(path, []byte(content), 0o600))
		if got := LoadStamps(path); len(got) > 0 {
			t.Errorf("%s: stamps %v", name, got)
		}
	}
	must(t, Forget(path), Forget(path))
	if got := LoadStamps(path); len(got) > 0 {
		t.Errorf("forgotten: stamps %v", got)
	}
}

// TestShare is one step where blocks can be shared, and elsewhere leaves the
// work to File.
func TestShare(t *testing.T) {
	for place, want := range map[string]bool{xfs(t, 320<<20): true, tmpfs(t, "size=64m"): false} {
		from, to := filepath.Join(place, "from"), filepath.Join(place, "to")
		writeSparse(t, from, imageSize, image()...)
		must(t, os.WriteFile(to, noise(9, 100), 0o600))
		shared, err := Share(from, to, nil)
		if err != nil || shared != want {
			t.Errorf("%s: shared %t, %v, want %t", place, shared, err, want)
		}
		if shared {
			must(t, Sync(to))
			wantSame(t, from, to)
		}
		if _, err := Share(from, from, nil); err == nil {
			t.Error("a file shares its blocks with itself")
		}
		if _, err := Share(from, filepath.Join(place, "no", "dir"), nil); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("to nowhere: %v", err)
		}
		if err := Sync(filepath.Join(place, "missing")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("sync nothing: %v", err)
		}
	}
}
