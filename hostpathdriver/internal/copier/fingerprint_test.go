package copier

import (
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/csikittest/needs"
)

// tracking is a directory whose file system tracks each change in a tree.
func tracking(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := TakeFingerprint(t.Context(), dir); errors.Is(err, ErrNoChangeTracking) {
		return xfs(t, 320<<20)
	}
	return dir
}

func take(t testing.TB, path string) Fingerprint {
	t.Helper()
	f, err := TakeFingerprint(t.Context(), path)
	must(t, err)
	return f
}

// TestFingerprint: each change, however it is hidden, gives another fingerprint. Reading gives none.
func TestFingerprint(t *testing.T) {
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
		"SameContents": {reason: "writing the same bytes is a write", change: func(t *testing.T, dir string) {
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
		"Symlink": {reason: "a new symbolic link", tree: true, change: func(t *testing.T, dir string) { must(t, os.Symlink("x", dir+"/a/link")) }},
	}
	base := tracking(t)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(base, name)
			must(t, os.MkdirAll(dir+deepest, 0o700), os.WriteFile(dir+"/file", noise(0, 8192), 0o600),
				os.WriteFile(dir+"/a/x", nil, 0o600), os.WriteFile(dir+"/a/z", nil, 0o600), os.WriteFile(dir+deepest+"/file", nil, 0o600))
			tree, file := take(t, dir), take(t, dir+"/file")
			c.change(t, dir)
			if same := tree.Equal(take(t, dir)); same != c.same {
				t.Errorf("%s: fingerprint of the tree is the same %t, want %t", c.reason, same, c.same)
			}
			if same := file.Equal(take(t, dir+"/file")); same != (c.same || c.tree) {
				t.Errorf("%s: fingerprint of the file is the same %t", c.reason, same)
			}
		})
	}
}

// deepest is deeper than there are levels open at a time.
var deepest = "/a" + strings.Repeat("/d", 300)

// TestStoreToADirtyPage: the second store to a page has no trace as long as the page is dirty, so that it is written to the disk first.
func TestStoreToADirtyPage(t *testing.T) {
	dir := tracking(t)
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
		before := take(t, dir)
		memory[i]++
		if before.Equal(take(t, dir)) {
			t.Fatalf("store %d left no trace", i)
		}
	}
}

// TestNoChangeInTheTickIsMissed: a write changes the fingerprint, however soon it comes.
func TestNoChangeInTheTickIsMissed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(path, nil, 0o600))
	unstable := 0
	for i := range 2000 {
		before, _, err := takeOnce(t.Context(), path)
		must(t, err)
		if !before.stable {
			unstable++
		}
		if before.stable || i%7 == 0 {
			writeAt(t, path, 0, []byte{byte(i)})
		}
		if after, _, err := takeOnce(t.Context(), path); err != nil || before.stable && before.Equal(after) {
			t.Fatalf("write %d left no trace, error %v", i, err)
		}
	}
	if unstable == 0 {
		t.Error("a file that was just written to is stable")
	}
	if before := take(t, path); !before.Equal(take(t, path)) {
		t.Error("nobody writes any more, and the fingerprint changes")
	}
}

// TestNeverStable: no fingerprint of a file that is always written to equals a later one.
func TestNeverStable(t *testing.T) {
	future := Fingerprint{}
	if future.Equal(future) {
		t.Error("an unstable fingerprint equals itself")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	path := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(path, nil, 0o600))
	if _, err := TakeFingerprint(ctx, path); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestDistinguishable(t *testing.T) {
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
			if got := distinguishable(c.changed, c.moment); got != c.want {
				t.Errorf("%s: distinguishable %t, want %t", c.reason, got, c.want)
			}
		})
	}
}

// TestNoChangeTracking refuses file systems that are not known to track changes.
func TestNoChangeTracking(t *testing.T) {
	memory := tmpfs(t, "")
	must(t, os.WriteFile(memory+"/file", nil, 0o600))
	for path, want := range map[string]error{
		memory: ErrNoChangeTracking, memory + "/file": nil, "/proc/sys": ErrNoChangeTracking, "/proc/uptime": ErrNoChangeTracking,
		memory + "/missing": fs.ErrNotExist,
	} {
		if _, err := TakeFingerprint(t.Context(), path); !errors.Is(err, want) {
			t.Errorf("%s: error %v, want %v", path, err, want)
		}
	}
	file := take(t, memory+"/file")
	writeAt(t, memory+"/file", 0, []byte("x"))
	if file.Equal(take(t, memory+"/file")) {
		t.Error("a write to memory left no trace")
	}
}

// TestClockSetBack: files that were changed before the clock was set back are not being changed all the time; one that was changed just now is.
func TestClockSetBack(t *testing.T) {
	now := time.Now().UnixNano()
	for reason, c := range map[string]struct {
		changed time.Duration
		stable  bool
	}{
		"long ago": {-time.Hour, true}, "just now": {0, false}, "of a clock that is a little ahead": {time.Minute, false}, "before the clock was set back": {time.Hour, true},
	} {
		w := &fingerprinter{digest: sha256.New(), end: now + int64(setBack)}
		w.add("file", &unix.Stat_t{Ctim: unix.NsecToTimespec(now + int64(c.changed) + 1)})
		if got := distinguishable(w.newest, now); got != c.stable {
			t.Errorf("%s: stable %t", reason, got)
		}
	}
}
