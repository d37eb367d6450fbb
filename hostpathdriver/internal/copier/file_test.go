package copier

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// image is the layout of most files of these tests: data at the start, in the middle,
// across a chunk and at no block's border, and a hole at the end.
func image() []block {
	return []block{{0, 8 << 10}, {1 << 20, 300 << 10}, {2<<20 + 64<<10, 100_001}, {3 << 20, 256 << 10}}
}

const imageSize = 4<<20 + 123

// copyOfImage is a copy of an image that a test interrupts.
type copyOfImage struct {
	testing.TB
	from, to string
}

func newCopyOfImage(t testing.TB) *copyOfImage {
	t.Helper()
	dir := t.TempDir()
	c := &copyOfImage{TB: t, from: filepath.Join(dir, "from"), to: filepath.Join(dir, "to")}
	writeSparse(t, c.from, imageSize, image()...)
	must(t, os.Chtimes(c.from, time.Unix(1, 0), time.Unix(1, 0))) // so that each write changes it
	return c
}

// job copies bytes.
func (c *copyOfImage) job(step func(string)) *job {
	return &job{to: c.to, limits: small(), noShare: true, beforeStep: step}
}

// finish copies and compares.
func (c *copyOfImage) finish() {
	c.Helper()
	must(c, second(c.job(nil).file(c.Context(), c.from)))
	wantSame(c, c.from, c.to)
}

func second[T any](_ T, err error) error { return err }

func TestFile(t *testing.T) {
	cases := map[string]struct {
		reason string
		size   int64
		blocks []block
		before int64 // size of what is at the destination, of noise
	}{
		"Image":      {reason: "data and holes", size: imageSize, blocks: image()},
		"Empty":      {reason: "nothing to copy"},
		"OnlyHole":   {reason: "no data", size: 16 << 20},
		"OnlyData":   {reason: "no hole", size: 100_000, blocks: []block{{0, 100_000}}},
		"OneByte":    {reason: "less than a block", size: 1, blocks: []block{{0, 1}}},
		"LongBefore": {reason: "the destination becomes smaller and gets its holes", size: imageSize, blocks: image(), before: 5 << 20},
		"EmptyOver":  {reason: "the destination becomes empty", before: 1 << 20},
	}
	for name, c := range cases {
		for _, noShare := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				dir, open := t.TempDir(), descriptors(t)
				from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
				writeSparse(t, from, c.size, c.blocks...)
				if c.before > 0 {
					must(t, os.WriteFile(to, noise(1, int(c.before)), 0o600))
				}
				j := &job{to: to, limits: small(), noShare: noShare}
				r, err := j.file(t.Context(), from)
				must(t, err)
				wantSame(t, from, to)
				if !r.Shared && (j.written < dataIn(c.blocks...) || j.written > allocated(t, from)) || r.Torn {
					t.Errorf("%s: %d bytes written, %+v", c.reason, j.written, r)
				}
				if info, err := os.Stat(to); err != nil || info.Mode() != 0o600 {
					t.Errorf("%s: mode %v, %v", c.reason, info.Mode(), err)
				}
				wantClosed(t, open)
			})
		}
	}
}

// TestFileCancel cancels at each step, and copies again over what the first copy left.
func TestFileCancel(t *testing.T) {
	c, open, seen := newCopyOfImage(t), descriptors(t), map[string]bool{}
	for number := 1; ; number++ {
		step := cancelAt(t, number, func(ctx context.Context, step func(string)) {
			if _, err := c.job(step).file(ctx, c.from); err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("step %d: error %v, want context.Canceled", number, err)
			}
		})
		wantClosed(t, open)
		if step == "" {
			break
		}
		seen[step] = true
		if number%3 == 0 {
			must(t, os.WriteFile(c.to, noise(99, imageSize+5000), 0o600)) // what a power cut may leave
		}
		c.finish()
	}
	for _, step := range []string{"create", "empty", "extend", "copy", "sync", "sync directory"} {
		if !seen[step] {
			t.Errorf("step %q was never reached", step)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	must(t, os.Remove(c.to))
	if _, err := File(ctx, c.from, c.to); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), c.from+" to "+c.to) {
		t.Errorf("error %v", err)
	}
	if _, err := os.Lstat(c.to); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a call that is cancelled before it begins made something: %v", err)
	}
}

// TestTornFile changes the source in the middle of the copy.
func TestTornFile(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(t *testing.T, from string)
		want   bool
	}{
		"Nothing": {reason: "nobody writes", change: func(*testing.T, string) {}},
		"Read":    {reason: "reading is no change", change: func(t *testing.T, from string) { contents(t, from) }},
		"Write":   {reason: "other contents", want: true, change: func(t *testing.T, from string) { writeAt(t, from, 3<<20, noise(7, 10_000)) }},
		"Grow":    {reason: "more contents", want: true, change: func(t *testing.T, from string) { must(t, os.Truncate(from, imageSize+1<<20)) }},
		"Hole": {reason: "less contents", want: true, change: func(t *testing.T, from string) {
			file, err := os.OpenFile(from, os.O_RDWR, 0)
			must(t, err)
			must(t, unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 3<<20, 128<<10), file.Close())
		}},
	}
	for name, torn := range cases {
		t.Run(name, func(t *testing.T) {
			c, copies := newCopyOfImage(t), 0
			r, err := c.job(func(step string) {
				if step == "copy" {
					if copies++; copies == 5 {
						torn.change(t, c.from)
					}
				}
			}).file(t.Context(), c.from)
			must(t, err)
			if r.Torn != torn.want {
				t.Errorf("%s: torn %t, want %t", torn.reason, r.Torn, torn.want)
			}
		})
	}
}

// TestTornInATick writes in the tick in which the file was written to before, as a copy of a few bytes takes less time than a tick. ramfs has no finer times
// than the tick, which other file systems have since Linux 6.13.
func TestTornInATick(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	mountFor(t, "ramfs", dir, "ramfs", 0, "")
	from := filepath.Join(dir, "from")
	for range 100 {
		must(t, os.WriteFile(from, noise(1, 8192), 0o600))
		j := &job{to: filepath.Join(dir, "to"), limits: limits{chunk: 4096}, noShare: true}
		writes := 0
		j.beforeStep = func(step string) {
			if step != "copy" || writes > 0 {
				return
			}
			writes++
			file, err := os.OpenFile(from, os.O_WRONLY, 0)
			must(t, err)
			_, err = file.WriteAt([]byte("torn"), 4096)
			must(t, err, file.Close())
		}
		if r, err := j.file(t.Context(), from); err != nil || !r.Torn {
			t.Fatalf("%+v, %v, want a torn copy", r, err)
		}
		must(t, os.WriteFile(from, noise(1, 8192), 0o600)) // just now, and not during the copy
		j.beforeStep, j.result = nil, Result{}
		if r, err := j.file(t.Context(), from); err != nil || r.Torn {
			t.Fatalf("%+v, %v, want a copy that is not torn", r, err)
		}
		must(t, os.Chtimes(from, time.Unix(1, 0), time.Now().Add(time.Hour)))
		if r, err := j.file(t.Context(), from); err != nil || r.Torn {
			t.Fatalf("modified in the future: %+v, %v, want a copy that is not torn", r, err)
		}
	}
}

func writeAt(t testing.TB, path string, at int64, data []byte) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer file.Close()
	_, err = file.WriteAt(data, at)
	must(t, err, file.Sync())
}

// TestFileShrinksMeanwhile: the copy becomes as small as the source.
func TestFileShrinksMeanwhile(t *testing.T) {
	for _, size := range []int64{0, 1 << 20, 1<<20 + 70_000, 4 << 20} {
		c := newCopyOfImage(t)
		copies := 0
		r, err := c.job(func(name string) {
			if copies++; name == "copy" && copies > 4 {
				must(t, os.Truncate(c.from, size))
			}
		}).file(t.Context(), c.from)
		must(t, err)
		got, err := os.Stat(c.to)
		must(t, err)
		if got.Size() != size || !r.Torn {
			t.Errorf("size %d, want %d; torn %t", got.Size(), size, r.Torn)
		}
	}
}

// TestFileVanishes: the volume is deleted while it is populated.
func TestFileVanishes(t *testing.T) {
	cases := map[string]struct {
		reason string
		vanish func(dir string) error
	}{
		"Renamed": {reason: "to the trash", vanish: func(dir string) error { return os.Rename(dir, dir+".trash") }},
		"Removed": {reason: "at once", vanish: func(dir string) error { return os.Remove(filepath.Join(dir, "disk")) }},
		"Replaced": {reason: "a new volume of the same name", vanish: func(dir string) error {
			return errors.Join(os.Rename(dir, dir+".trash"), os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "disk"), nil, 0o600))
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			source := newCopyOfImage(t)
			dir := dirs(t, "volume")[0]
			copies := 0
			source.to = filepath.Join(dir, "disk")
			_, err := source.job(func(name string) {
				if name == "copy" {
					if copies++; copies == 3 {
						must(t, c.vanish(dir))
					}
				}
			}).file(t.Context(), source.from)
			if !errors.Is(err, fs.ErrNotExist) || copies != 3 {
				t.Errorf("%s: error %v after %d chunks, want fs.ErrNotExist", c.reason, err, copies)
			}
		})
	}
}

// TestFileRefuses: what cannot be copied is an error, and nothing is lost.
func TestFileRefuses(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	must(t, os.WriteFile(path("file"), []byte("hello"), 0o600), os.Symlink("file", path("symlink")),
		os.Link(path("file"), path("link")), os.Mkdir(path("dir"), 0o700), unix.Mkfifo(path("pipe"), 0o600))
	cases := map[string]struct {
		reason, from, to string
		want             error
	}{
		"Missing":      {reason: "no source", from: "missing", to: "new", want: fs.ErrNotExist},
		"NoDirectory":  {reason: "no place", from: "file", to: "missing/new", want: fs.ErrNotExist},
		"Symlink":      {reason: "a source that points elsewhere", from: "symlink", to: "new", want: unix.ELOOP},
		"ToSymlink":    {reason: "a destination that points elsewhere", from: "file", to: "symlink", want: unix.ELOOP},
		"Directory":    {reason: "no file", from: "dir", to: "new"},
		"ToDirectory":  {reason: "no file", from: "file", to: "dir", want: unix.EISDIR},
		"Pipe":         {reason: "nobody would ever write", from: "pipe", to: "new"},
		"Itself":       {reason: "it would be emptied", from: "file", to: "file"},
		"ItselfLinked": {reason: "it would be emptied", from: "file", to: "link"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			open := descriptors(t)
			_, err := File(t.Context(), path(c.from), path(c.to))
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("%s: error %v, want %v", c.reason, err, c.want)
			}
			if data, err := os.ReadFile(path("file")); err != nil || string(data) != "hello" {
				t.Errorf("%s: the source is %q, %v", c.reason, data, err)
			}
			wantClosed(t, open)
		})
	}
}
