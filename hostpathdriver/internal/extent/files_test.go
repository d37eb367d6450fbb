package extent

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/csikittest/needs"
)

// TestRandomFiles is TestRandomDisks with the file system. That may have larger
// blocks, and say of more than was written that it is data.
func TestRandomFiles(t *testing.T) {
	needs.Time(t)
	random := seeded(t)
	f := newFiles(t)
	for range 50 {
		base := f.add("base", (1+random.Int64N(400))*block)
		target := f.add("target", (1+random.Int64N(400))*block)
		for range random.IntN(20) {
			for _, d := range []File{base, target} {
				at := random.Int64N(d.Size)
				f.write(d, randomBytes(random, min(d.Size-at, 1+random.Int64N(2*block))), at)
			}
		}
		before, after := f.contents(base), f.contents(target)
		offset := random.Int64N(target.Size + 1)
		want := from(offset, differentBlocks(before, after))
		if diff := cmp.Diff(joined(want), f.different("base", "target", offset)); diff != "" {
			t.Fatalf("difference from %d (-want +got):\n%s", offset, diff)
		}
		checkCover(t, f.allocated("target", offset), from(offset, differentBlocks(nil, after)), offset, target.Size)
	}
}

// checkCover: the extents contain the blocks, and are well-formed.
func checkCover(t *testing.T, extents, blocks []Range, offset, size int64) {
	t.Helper()
	end := int64(0)
	for i, e := range extents {
		if e.Size <= 0 || e.Offset%block != 0 || e.Size%block != 0 || e.end() > size || (i > 0 && e.Offset <= end) || e.end() <= offset {
			t.Fatalf("extent %d from %d on: %v", i, offset, extents)
		}
		end = e.end()
	}
	for _, b := range blocks {
		if len(extents) == 0 {
			t.Fatalf("block %v is missing", b)
		}
		for extents[0].end() <= b.Offset && len(extents) > 1 {
			extents = extents[1:]
		}
		if b.Offset < extents[0].Offset || b.end() > extents[0].end() {
			t.Fatalf("block %v is missing near %v", b, extents[0])
		}
	}
}

// counted counts what is read of a file.
type counted struct {
	file
	reads, seeks int
}

func (c *counted) ReadAt(p []byte, at int64) (int, error) {
	c.reads++
	return c.file.ReadAt(p, at)
}

func (c *counted) Seek(offset int64, whence int) (int64, error) {
	c.seeks++
	return c.file.Seek(offset, whence)
}

// TestLargeSparseFile: what a disk of 1 TiB costs depends on its data.
func TestLargeSparseFile(t *testing.T) {
	const size = 1 << 40
	f := newFiles(t)
	base, target := f.add("base", size), f.add("target", size)
	f.write(base, []byte("old"), 1<<30)
	f.write(target, []byte("new"), 1<<30)
	f.write(target, []byte("more"), size-4)
	var disks []*disk
	var counts []*counted
	for _, d := range []File{target, base} {
		opened, err := open(d)
		if err != nil {
			t.Fatal(err)
		}
		defer opened.Close()
		c := &counted{file: opened.file}
		opened.file = c
		disks, counts = append(disks, opened), append(counts, c)
	}
	if start, _, err := disks[0].data(0); err == nil && start == 0 {
		t.Skip("the file system of the temporary directory knows no holes")
	}
	counts[0].seeks = 0
	if got := mustCollect(t, ranges(t.Context(), disks[:1], 0)); len(got) != 2 || counts[0].reads != 0 || counts[0].seeks > 6 {
		t.Errorf("allocated: %v with %d reads, %d seeks", got, counts[0].reads, counts[0].seeks)
	}
	got := mustCollect(t, ranges(t.Context(), disks, 0))
	want := extents(1<<30, block, size-block, block)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("difference (-want +got):\n%s", diff)
	}
	for i, c := range counts {
		if c.reads > 2 || c.seeks > 16 {
			t.Errorf("disk %d: %d reads, %d seeks", i, c.reads, c.seeks)
		}
	}
}

// TestDeletedMeanwhile: a file that is open stays readable; one that is gone
// before is a snapshot that does not exist.
func TestDeletedMeanwhile(t *testing.T) {
	f := newFiles(t)
	base, target := f.add("base", 8*chunk), f.add("target", 8*chunk)
	for i := range int64(8) {
		f.write(target, bytes.Repeat([]byte{1}, int(block)), i*chunk)
	}
	found := Different(t.Context(), target, base, 0)
	n := 0
	for _, err := range found {
		if err != nil {
			t.Fatalf("after %d: %v", n, err)
		}
		if n == 0 {
			for _, d := range []File{base, target} {
				if err := os.Remove(d.Path); err != nil {
					t.Fatal(err)
				}
			}
		}
		n++
	}
	if n != 8 {
		t.Errorf("%d extents, want 8", n)
	}
	if got, err := collect(t, found); !errors.Is(err, fs.ErrNotExist) || len(got) > 0 {
		t.Errorf("again: %v, %v, want %v", got, err, fs.ErrNotExist)
	}
}

// TestNoRegularFile: a named pipe does not block either.
func TestNoRegularFile(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, pipe} {
		if got, err := collect(t, Allocated(t.Context(), File{Path: path, Size: block}, 0)); err == nil || len(got) > 0 {
			t.Errorf("ranges of %s: %v, %v", path, got, err)
		}
	}
}

// TestManyAtOnce ranges over the same sequence from several goroutines, and leaves
// no file open, however it ends.
func TestManyAtOnce(t *testing.T) {
	f := newFiles(t)
	base, target := f.add("base", 8*chunk), f.add("target", 8*chunk)
	for i := range int64(8) {
		f.write(target, []byte{1}, i*chunk)
	}
	before := openFiles(t)
	found := Different(t.Context(), target, base, 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancelled := Different(ctx, target, base, 0)
	cancel()
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			n := 0
			for _, err := range found {
				if err != nil {
					t.Error(err)
				}
				n++
			}
			if n != 8 {
				t.Errorf("%d extents, want 8", n)
			}
		})
		group.Go(func() {
			for range found {
				return
			}
		})
		group.Go(func() {
			for e, err := range cancelled {
				if !errors.Is(err, context.Canceled) {
					t.Errorf("cancelled: %v, %v", e, err)
				}
			}
		})
	}
	group.Wait()
	if after := openFiles(t); after != before {
		t.Errorf("%d files are open, %d before", after, before)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
