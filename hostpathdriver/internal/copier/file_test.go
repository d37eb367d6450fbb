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

	"github.com/longshore-csi/longshore/hostpathdriver/internal/needs"
)

// image is the layout of most files here: data at the start, in the middle,
// across a chunk and at no block's border, and a hole at the end.
func image() []block {
	return []block{{0, 8 << 10}, {1 << 20, 300 << 10}, {2<<20 + 64<<10, 100_001}, {3 << 20, 256 << 10}}
}

const imageSize = 4<<20 + 123

// copyOfImage is a copy of an image that a test interrupts.
type copyOfImage struct {
	testing.TB
	from, to, progress string
}

func newCopyOfImage(t testing.TB) *copyOfImage {
	t.Helper()
	dir := t.TempDir()
	c := &copyOfImage{TB: t, from: filepath.Join(dir, "from"), to: filepath.Join(dir, "to"), progress: filepath.Join(dir, "progress")}
	writeSparse(t, c.from, imageSize, image()...)
	must(t, os.Chtimes(c.from, time.Unix(1, 0), time.Unix(1, 0))) // so that each write changes it
	return c
}

func (c *copyOfImage) options(step func(string)) Options {
	return Options{Progress: c.progress, Step: step, NoReflink: true, limits: small()}
}

// again starts over.
func (c *copyOfImage) again() {
	c.Helper()
	if err := os.Remove(c.to); !errors.Is(err, fs.ErrNotExist) {
		must(c, err)
	}
	must(c, Forget(c.progress))
}

// done is how far the progress file says that the copy is.
func (c *copyOfImage) done() int64 {
	c.Helper()
	source, err := os.Open(c.from)
	must(c, err)
	defer source.Close()
	target, err := os.Open(c.to)
	if errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	must(c, err)
	defer target.Close()
	of, err := newTask("file", c.from, c.to, source, target)
	must(c, err)
	return load(c.progress, of).File.At
}

// powerCut loses everything that the progress file does not vouch for.
func (c *copyOfImage) powerCut() {
	c.Helper()
	target, err := os.OpenFile(c.to, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	must(c, err)
	defer target.Close()
	if at := c.done(); at < imageSize {
		_, err = target.WriteAt(noise(99, 1<<20), at)
		must(c, err)
	}
}

// finish copies the rest and tells how much was written.
func (c *copyOfImage) finish() int64 {
	c.Helper()
	r, err := File(c.Context(), c.from, c.to, c.options(nil))
	must(c, err)
	wantSame(c, c.from, c.to)
	return r.Written
}

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
		for _, noReflink := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				dir, open := t.TempDir(), descriptors(t)
				from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
				writeSparse(t, from, c.size, c.blocks...)
				if c.before > 0 {
					must(t, os.WriteFile(to, noise(1, int(c.before)), 0o600))
				}
				var told int64
				r, err := File(t.Context(), from, to, Options{NoReflink: noReflink, limits: small(), Report: func(done int64) {
					if done < told {
						t.Errorf("%s: reported %d bytes after %d", c.reason, done, told)
					}
					told = done
				}})
				must(t, err)
				wantSame(t, from, to)
				if !r.Reflinked && (r.Written < dataIn(0, c.blocks...) || r.Written > allocated(t, from)) {
					t.Errorf("%s: %d bytes written", c.reason, r.Written)
				}
				if told != c.size {
					t.Errorf("%s: %d bytes reported, want %d", c.reason, told, c.size)
				}
				if info, err := os.Stat(to); err != nil || info.Mode() != 0o600 {
					t.Errorf("%s: mode %v, %v", c.reason, info.Mode(), err)
				}
				wantClosed(t, open)
			})
		}
	}
}

// TestFileCrash ends a copy at each of its steps, loses what was not synced,
// and goes on: nothing before the last checkpoint is written again.
func TestFileCrash(t *testing.T) {
	needs.Time(t)
	c, open, seen := newCopyOfImage(t), descriptors(t), map[string]bool{}
	for number := 1; ; number++ {
		c.again()
		step := crashAt(number, func(step func(string)) { must(t, second(File(t.Context(), c.from, c.to, c.options(step)))) })
		if step == "" {
			break
		}
		seen[step] = true
		c.powerCut()
		done := c.done()
		written := c.finish()
		if limit := rounded(dataIn(done, image()...)); written > limit {
			t.Errorf("step %d, %s: %d bytes written after a checkpoint at %d, of %d left", number, step, written, done, limit)
		}
	}
	for _, step := range []string{"create", "truncate", "extend", "copy", "sync", "sync directory", "write progress", "rename progress", "sync progress"} {
		if !seen[step] {
			t.Errorf("step %q was never reached", step)
		}
	}
	wantClosed(t, open)
}

// rounded adds what whole blocks of 4 KiB are larger than the data in them.
func rounded(data int64) int64 {
	return data + int64(len(image()))*8<<10
}

func second[T any](_ T, err error) error { return err }

// TestFileCancel cancels at each step: what is done is kept, so that no byte is
// written twice in all calls together.
func TestFileCancel(t *testing.T) {
	c := newCopyOfImage(t)
	total := c.finish()
	for number := 1; ; number++ {
		c.again()
		var first Result
		step := cancelAt(t, number, func(ctx context.Context, step func(string)) {
			var err error
			first, err = File(ctx, c.from, c.to, c.options(step))
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("step %d: error %v, want context.Canceled", number, err)
			}
		})
		if step == "" {
			break
		}
		if rest := c.finish(); first.Written+rest != total {
			t.Errorf("step %d, %s: %d and %d bytes written, want %d together", number, step, first.Written, rest, total)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c.again()
	if _, err := File(ctx, c.from, c.to, c.options(nil)); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), c.from+" to "+c.to) {
		t.Errorf("error %v", err)
	}
	if _, err := os.Lstat(c.to); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a call that is cancelled before it begins made something: %v", err)
	}
}

// TestFileComplete repeats a call whose answer was lost.
func TestFileComplete(t *testing.T) {
	c := newCopyOfImage(t)
	c.finish()
	must(t, os.Truncate(c.to, imageSize+4096)) // the caller made it larger already
	r, err := File(t.Context(), c.from, c.to, c.options(func(step string) {
		if step != "create" { // which opens what is there
			t.Errorf("step %s", step)
		}
	}))
	if err != nil || r != (Result{}) {
		t.Errorf("%+v, %v", r, err)
	}
	if info, err := os.Stat(c.to); err != nil || info.Size() != imageSize+4096 {
		t.Errorf("size %d, %v", info.Size(), err)
	}
	must(t, Forget(c.progress), Forget(c.progress))
	c.finish()
}

// half copies until after the first checkpoint.
func (c *copyOfImage) half() {
	c.Helper()
	c.again()
	copies := 0
	cancelAt(c, 1<<30, func(ctx context.Context, _ func(string)) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		_, err := File(ctx, c.from, c.to, c.options(func(name string) {
			if name == "copy" {
				if copies++; copies == 7 {
					cancel()
				}
			}
		}))
		if !errors.Is(err, context.Canceled) {
			c.Fatalf("error %v, want context.Canceled", err)
		}
	})
	if at := c.done(); at < 1<<20 {
		c.Fatalf("only %d bytes are done", at)
	}
}

// TestFileTornProgress: what is no progress of this copy makes it start over.
func TestFileTornProgress(t *testing.T) {
	c := newCopyOfImage(t)
	total := c.finish()
	replace := func(old, with string) func(string) string {
		return func(good string) string { return strings.Replace(good, old, with, 1) }
	}
	bad := map[string]func(good string) string{
		"Empty":    func(string) string { return "" },
		"Zeros":    func(good string) string { return strings.Repeat("\x00", len(good)) },
		"Twice":    func(good string) string { return good + good },
		"OneByte":  func(good string) string { return good[:1] },
		"Half":     func(good string) string { return good[:len(good)/2] },
		"Cut":      func(good string) string { return good[:len(good)-1] },
		"Foreign":  func(string) string { return "#!/bin/sh\n" },
		"Version":  replace(`"version":1`, `"version":2`),
		"Kind":     replace(`"kind":"file"`, `"kind":"tree"`),
		"From":     replace(c.from, c.from+"2"),
		"To":       replace(`"`+c.to+`"`, `"`+c.to+`2"`),
		"Field":    replace(`{`, `{"more":1,`),
		"Negative": replace(`"at":`, `"at":-`),
		"Behind":   replace(`"at":`, `"at":9`),
	}
	for name, change := range bad {
		t.Run(name, func(t *testing.T) {
			c := &copyOfImage{TB: t, from: c.from, to: c.to, progress: c.progress}
			c.half()
			good := contents(t, c.progress)
			if change(good) == good {
				t.Fatal("nothing is bad")
			}
			must(t, os.WriteFile(c.progress, []byte(change(good)), 0o600))
			if written := c.finish(); written != total {
				t.Errorf("%d bytes written, want all %d", written, total)
			}
		})
	}
}

// TestFileChanges changes something between two calls.
func TestFileChanges(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(c *copyOfImage)
		whole  bool // from the beginning
		torn   bool
	}{
		"Nothing": {reason: "it goes on", change: func(*copyOfImage) {}},
		"Grown":   {reason: "a volume that grows is the same", change: func(c *copyOfImage) { must(c, os.Truncate(c.from, imageSize+1<<20)) }, torn: true},
		"Shrunk":  {reason: "what is done may be data no more", change: func(c *copyOfImage) { must(c, os.Truncate(c.from, 1<<20)) }, whole: true},
		"Behind": {reason: "what is behind the checkpoint is taken as it is now", torn: true, change: func(c *copyOfImage) {
			writeAt(c, c.from, 3<<20+4096, noise(7, 10_000))
		}},
		"Punched": {reason: "holes that are new are holes in the copy", torn: true, change: func(c *copyOfImage) {
			file, err := os.OpenFile(c.from, os.O_RDWR, 0)
			must(c, err)
			defer file.Close()
			must(c, unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 3<<20, 128<<10))
			writeAt(c, c.to, 3<<20, noise(8, 128<<10))
		}},
		"Replaced": {reason: "another file of the same name", whole: true, change: func(c *copyOfImage) {
			must(c, os.Rename(c.from, c.from+".old"))
			writeSparse(c, c.from, imageSize, block{4096, 8192})
		}},
		"Recreated": {reason: "another destination of the same name", whole: true, change: func(c *copyOfImage) {
			must(c, os.Rename(c.to, c.to+".old"), os.WriteFile(c.to, noise(3, imageSize), 0o600))
		}},
		"Removed":   {reason: "no destination", whole: true, change: func(c *copyOfImage) { must(c, os.Remove(c.to)) }},
		"Truncated": {reason: "a destination that lost data", whole: true, change: func(c *copyOfImage) { must(c, os.Truncate(c.to, 4096)) }},
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			c := newCopyOfImage(t)
			c.half()
			done := c.done()
			change.change(c)
			r, err := File(t.Context(), c.from, c.to, c.options(nil))
			must(t, err)
			wantSame(t, c.from, c.to)
			if data := r.Written + allocatedBefore(t, c.to, done); !change.whole && data > allocated(t, c.from) {
				t.Errorf("%s: %d bytes written, something twice", change.reason, r.Written)
			}
			if whole := r.Written >= dataIn(0, block{0, 8192}) && allocated(t, c.from)-r.Written < 64<<10; whole != change.whole {
				t.Errorf("%s: %d bytes written of %d, from the beginning %t", change.reason, r.Written, allocated(t, c.from), whole)
			}
			if r.Torn != change.torn {
				t.Errorf("%s: torn %t, want %t", change.reason, r.Torn, change.torn)
			}
		})
	}
}

// allocatedBefore counts the blocks of data before an offset.
func allocatedBefore(t testing.TB, path string, end int64) (sum int64) {
	t.Helper()
	file := openQuietly(t, path)
	defer file.Close()
	for at := int64(0); at < end; {
		start, stop, err := nextData(file, at, end)
		must(t, err)
		sum += stop - start
		at = max(stop, at+1)
	}
	return sum
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
		r, err := File(t.Context(), c.from, c.to, c.options(func(name string) {
			if copies++; name == "copy" && copies > 4 {
				must(t, os.Truncate(c.from, size))
			}
		}))
		must(t, err)
		got, err := os.Stat(c.to)
		must(t, err)
		if got.Size() != size || !r.Torn {
			t.Errorf("size %d, want %d; torn %t", got.Size(), size, r.Torn)
		}
	}
}

// TestFileVanishes: the volume is deleted while it is filled.
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
			r, err := File(t.Context(), source.from, filepath.Join(dir, "disk"), source.options(func(name string) {
				if name == "copy" {
					if copies++; copies == 3 {
						must(t, c.vanish(dir))
					}
				}
			}))
			if !errors.Is(err, fs.ErrNotExist) || copies != 3 {
				t.Errorf("%s: error %v after %d chunks, want fs.ErrNotExist", c.reason, err, copies)
			}
			if r.Written == 0 {
				t.Errorf("%s: result %+v tells nothing of what was written", c.reason, r)
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
			_, err := File(t.Context(), path(c.from), path(c.to), Options{})
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

// TestFileNoProgress: a progress file that cannot be written is an error, as
// the copy would never end.
func TestFileNoProgress(t *testing.T) {
	c := newCopyOfImage(t)
	c.progress = filepath.Join(t.TempDir(), "missing", "progress")
	if _, err := File(t.Context(), c.from, c.to, c.options(nil)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v, want fs.ErrNotExist", err)
	}
}
