package extent

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/needs"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

func TestSourceRules(t *testing.T) {
	f := newFiles(t)
	f.add("a", 4*block)
	f.add("b", 8*block)
	f.add("other", 4*block).Volume = "w"
	f.add("filling", 4*block).Filling = true
	f.add("tree", 4*block).Path = ""
	cases := map[string]struct {
		reason string
		base   volume.ID // empty asks for what is allocated
		target volume.ID
		offset int64
		err    error
	}{
		"Allocated":        {reason: "a snapshot", target: "a"},
		"AllocatedUnknown": {reason: "no such snapshot", target: "c", err: volume.ErrNotFound},
		"AllocatedTree":    {reason: "no disk", target: "tree", err: volume.ErrInvalid},
		"AllocatedFilling": {reason: "not complete", target: "filling", err: volume.ErrPrecondition},
		"AllocatedBefore":  {reason: "before the disk", target: "a", offset: -1, err: volume.ErrOutOfRange},
		"AllocatedEnd":     {reason: "nothing left", target: "a", offset: 4 * block},
		"AllocatedBeyond":  {reason: "beyond the disk", target: "a", offset: 4*block + 1, err: volume.ErrOutOfRange},
		"Delta":            {reason: "two snapshots", base: "a", target: "b"},
		"DeltaItself":      {reason: "no difference", base: "a", target: "a"},
		"DeltaShrunk":      {reason: "the earlier one is larger", base: "b", target: "a"},
		"DeltaNoBase":      {reason: "no such snapshot", base: "c", target: "a", err: volume.ErrNotFound},
		"DeltaNoTarget":    {reason: "no such snapshot", base: "a", target: "c", err: volume.ErrNotFound},
		"DeltaOther":       {reason: "not the same volume", base: "other", target: "a", err: volume.ErrInvalid},
		"DeltaTree":        {reason: "no disk", base: "tree", target: "a", err: volume.ErrInvalid},
		"DeltaToTree":      {reason: "no disk", base: "a", target: "tree", err: volume.ErrInvalid},
		"DeltaFilling":     {reason: "not complete", base: "filling", target: "a", err: volume.ErrPrecondition},
		"DeltaToFilling":   {reason: "not complete", base: "a", target: "filling", err: volume.ErrPrecondition},
		"DeltaBeyondBase":  {reason: "the size of the target counts", base: "a", target: "b", offset: 8 * block},
		"DeltaBeyond":      {reason: "beyond the target", base: "b", target: "a", offset: 8 * block, err: volume.ErrOutOfRange},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var m *volume.Metadata
			var err error
			if c.base == "" {
				m, err = f.source().Allocated(t.Context(), &volume.AllocatedRequest{Snapshot: c.target, Offset: c.offset})
			} else {
				m, err = f.source().Delta(t.Context(), &volume.DeltaRequest{Base: c.base, Target: c.target, Offset: c.offset})
			}
			if !errors.Is(err, c.err) {
				t.Fatalf("%s: %v, want %v", c.reason, err, c.err)
			}
			if err != nil {
				return
			}
			if want := f.all[c.target].Size; m.Capacity != want {
				t.Errorf("%s: capacity %d, want %d", c.reason, m.Capacity, want)
			}
			if got := mustCollect(t, m.Extents); len(got) > 0 {
				t.Errorf("%s: %v in holes", c.reason, got)
			}
		})
	}
}

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
			for _, d := range []*volume.SnapshotDisk{base, target} {
				at := random.Int64N(d.Size)
				f.write(d, randomBytes(random, min(d.Size-at, 1+random.Int64N(2*block))), at)
			}
		}
		before, after := f.contents(base), f.contents(target)
		offset := random.Int64N(target.Size + 1)
		want := from(offset, differentBlocks(before, after))
		if diff := cmp.Diff(joined(want), f.delta("base", "target", offset)); diff != "" {
			t.Fatalf("difference from %d (-want +got):\n%s", offset, diff)
		}
		checkCover(t, f.allocated("target", offset), from(offset, differentBlocks(nil, after)), offset, target.Size)
	}
}

// checkCover: the extents contain the blocks, and are well-formed.
func checkCover(t *testing.T, extents, blocks []volume.Extent, offset, size int64) {
	t.Helper()
	end := int64(0)
	for i, e := range extents {
		if e.Length <= 0 || e.Offset%block != 0 || e.Length%block != 0 || e.End() > size || (i > 0 && e.Offset <= end) || e.End() <= offset {
			t.Fatalf("extent %d from %d on: %v", i, offset, extents)
		}
		end = e.End()
	}
	for _, b := range blocks {
		if len(extents) == 0 {
			t.Fatalf("block %v is missing", b)
		}
		for extents[0].End() <= b.Offset && len(extents) > 1 {
			extents = extents[1:]
		}
		if b.Offset < extents[0].Offset || b.End() > extents[0].End() {
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
	for _, d := range []*volume.SnapshotDisk{target, base} {
		opened, err := open(d.Path, d.Size)
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
	m, err := f.source().Delta(t.Context(), &volume.DeltaRequest{Base: "base", Target: "target"})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, err := range m.Extents {
		if err != nil {
			t.Fatalf("after %d: %v", n, err)
		}
		if n == 0 {
			for _, d := range []*volume.SnapshotDisk{base, target} {
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
	if got, err := collect(t, m.Extents); !errors.Is(err, volume.ErrNotFound) || !errors.Is(err, fs.ErrNotExist) || len(got) > 0 {
		t.Errorf("again: %v, %v, want %v", got, err, volume.ErrNotFound)
	}
}

func TestNoRegularFile(t *testing.T) {
	f := newFiles(t)
	f.add("s", block).Path = f.dir
	m, err := f.source().Allocated(t.Context(), &volume.AllocatedRequest{Snapshot: "s"})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := collect(t, m.Extents); err == nil || len(got) > 0 {
		t.Errorf("extents of a directory: %v, %v", got, err)
	}
}

// TestManyAtOnce ranges over the same metadata from several sides, and leaves
// no file open, however it ends.
func TestManyAtOnce(t *testing.T) {
	f := newFiles(t)
	f.add("base", 8*chunk)
	target := f.add("target", 8*chunk)
	for i := range int64(8) {
		f.write(target, []byte{1}, i*chunk)
	}
	before := openFiles(t)
	m, err := f.source().Delta(t.Context(), &volume.DeltaRequest{Base: "base", Target: "target"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancelled, err := f.source().Delta(ctx, &volume.DeltaRequest{Base: "base", Target: "target"})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			n := 0
			for _, err := range m.Extents {
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
			for range m.Extents {
				return
			}
		})
		group.Go(func() {
			for e, err := range cancelled.Extents {
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
