package extent

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/csikittest/needs"
)

// piece is a write of a table: n bytes of one value.
type piece struct {
	at, n int64
	value byte
}

func sparseOf(size int64, pieces ...piece) *sparse {
	s := newSparse(size)
	for _, p := range pieces {
		s.write(bytes.Repeat([]byte{p.value}, int(p.n)), p.at)
	}
	return s
}

func TestAllocatedRanges(t *testing.T) {
	const size = 8 * block
	cases := map[string]struct {
		reason string
		pieces []piece
		offset int64
		want   []Range
	}{
		"Nothing":       {reason: "a hole from end to end"},
		"Byte":          {reason: "the block around it", pieces: []piece{{at: 2*block + 7, n: 1, value: 1}}, want: extents(2*block, block)},
		"Zeros":         {reason: "zeros that were written are data", pieces: []piece{{at: block, n: block}}, want: extents(block, block)},
		"Adjacent":      {reason: "joined, whoever wrote them", pieces: []piece{{block, 1, 1}, {2*block + 600, 1, 1}}, want: extents(block, 2*block)},
		"SameBlock":     {reason: "two ranges of data in one block are one", pieces: []piece{{0, 1, 1}, {block - 1, 1, 1}}, want: extents(0, block)},
		"Across":        {reason: "both blocks that a write touched", pieces: []piece{{block - 1, 2, 1}}, want: extents(0, 2*block)},
		"Apart":         {reason: "a block between them", pieces: []piece{{0, 1, 1}, {2 * block, 1, 1}}, want: extents(0, block, 2*block, block)},
		"Last":          {reason: "up to the end", pieces: []piece{{size - 1, 1, 1}}, want: extents(size-block, block)},
		"Full":          {reason: "all of it", pieces: []piece{{0, size, 1}}, want: extents(0, size)},
		"OffsetIn":      {reason: "from the block of the offset on", pieces: []piece{{0, size, 1}}, offset: 3*block + 1, want: extents(3*block, 5*block)},
		"OffsetBetween": {reason: "the next data", pieces: []piece{{0, 1, 1}, {6 * block, 1, 1}}, offset: block, want: extents(6*block, block)},
		"OffsetHole":    {reason: "data in the block of the offset, before it", pieces: []piece{{block, 1, 1}}, offset: 2*block - 1, want: extents(block, block)},
		"OffsetEnd":     {reason: "nothing is left", pieces: []piece{{0, size, 1}}, offset: size},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := mustCollect(t, ranges(t.Context(), []*disk{sparseOf(size, c.pieces...).disk()}, c.offset))
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

func TestDifferentRanges(t *testing.T) {
	const size = 8 * block
	cases := map[string]struct {
		reason       string
		base, target *sparse
		offset       int64
		want         []Range
	}{
		"Nothing":     {reason: "both are holes", base: sparseOf(size), target: sparseOf(size)},
		"Same":        {reason: "written equally", base: sparseOf(size, piece{0, size, 1}), target: sparseOf(size, piece{0, size, 1})},
		"Changed":     {reason: "one byte, its block", base: sparseOf(size, piece{0, size, 1}), target: sparseOf(size, piece{0, size, 1}, piece{block + 9, 1, 2}), want: extents(block, block)},
		"New":         {reason: "data where the base has none", base: sparseOf(size), target: sparseOf(size, piece{5 * block, block, 1}), want: extents(5*block, block)},
		"Gone":        {reason: "a hole where the base has data", base: sparseOf(size, piece{5 * block, block, 1}), target: sparseOf(size), want: extents(5*block, block)},
		"Zeroed":      {reason: "zeros are what a hole is", base: sparseOf(size), target: sparseOf(size, piece{block, block, 0})},
		"Adjacent":    {reason: "joined", base: sparseOf(size), target: sparseOf(size, piece{block, 2 * block, 1}), want: extents(block, 2*block)},
		"Interleaved": {reason: "data of either, in turn", base: sparseOf(size, piece{0, block, 1}, piece{4 * block, block, 1}), target: sparseOf(size, piece{2 * block, block, 1}, piece{6 * block, block, 1}), want: extents(0, block, 2*block, block, 4*block, block, 6*block, block)},
		"Grown":       {reason: "the base is zeros beyond its end", base: sparseOf(2*block, piece{0, 2 * block, 1}), target: sparseOf(size, piece{0, 2 * block, 1}, piece{3 * block, block, 0}, piece{7 * block, block, 1}), want: extents(7*block, block)},
		"Shrunk":      {reason: "nothing beyond the end of the target", base: sparseOf(size, piece{0, size, 1}), target: sparseOf(2*block, piece{0, block, 1}), want: extents(block, block)},
		"Offset":      {reason: "from its block on", base: sparseOf(size), target: sparseOf(size, piece{0, size, 1}), offset: 2*block - 1, want: extents(block, 7*block)},
		"OffsetEnd":   {reason: "nothing is left", base: sparseOf(size), target: sparseOf(size, piece{0, size, 1}), offset: size},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := mustCollect(t, ranges(t.Context(), []*disk{c.target.disk(), c.base.disk()}, c.offset))
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

// TestLengthOfFile: the size of the disk counts, not that of its file.
func TestLengthOfFile(t *testing.T) {
	for name, size := range map[string]int64{"Longer": 2 * block, "Shorter": 8 * block} {
		t.Run(name, func(t *testing.T) {
			full, empty := sparseOf(4*block, piece{0, 4 * block, 1}), sparseOf(block)
			want := extents(0, min(size, 4*block))
			for what, got := range map[string][]Range{
				"allocated": mustCollect(t, ranges(t.Context(), []*disk{{file: full, size: size}}, 0)),
				"changed":   mustCollect(t, ranges(t.Context(), []*disk{{file: full, size: size}, {file: empty, size: size}}, 0)),
				"gone":      mustCollect(t, ranges(t.Context(), []*disk{{file: empty, size: size}, {file: full, size: size}}, 0)),
			} {
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", what, diff)
				}
			}
		})
	}
}

// TestEveryOffset begins at each byte of a disk.
func TestEveryOffset(t *testing.T) {
	needs.Time(t)
	const size = 5 * block
	base := sparseOf(size, piece{0, 1, 1}, piece{3 * block, 1, 1})
	target := sparseOf(size, piece{block + 1, 1, 1}, piece{2 * block, 1, 1}, piece{4*block + sector, 1, 1})
	allocated, different := target.allocatedBlocks(), differentBlocks(base.contents, target.contents)
	for offset := int64(0); offset <= size; offset++ {
		got := mustCollect(t, ranges(t.Context(), []*disk{target.disk()}, offset))
		if want := joined(from(offset, allocated)); !cmp.Equal(want, got) {
			t.Fatalf("allocated from %d: %v, want %v", offset, got, want)
		}
		got = mustCollect(t, ranges(t.Context(), []*disk{target.disk(), base.disk()}, offset))
		if want := joined(from(offset, different)); !cmp.Equal(want, got) {
			t.Fatalf("difference from %d: %v, want %v", offset, got, want)
		}
	}
}

// TestRandomDisks compares random disks with what a look at each byte finds.
func TestRandomDisks(t *testing.T) {
	needs.Time(t)
	random := seeded(t)
	for range 100 {
		base, target := randomSparse(random), randomSparse(random)
		if random.IntN(2) == 0 { // mostly equal, as snapshots are
			n := min(len(base.contents), len(target.contents))
			copy(target.contents[:n], base.contents[:n])
			copy(target.written[:n/sector], base.written[:n/sector])
			scribble(random, target)
		}
		offset := random.Int64N(int64(len(target.contents)) + 1)
		got := mustCollect(t, ranges(t.Context(), []*disk{target.disk()}, offset))
		if diff := cmp.Diff(joined(from(offset, target.allocatedBlocks())), got); diff != "" {
			t.Fatalf("allocated from %d (-want +got):\n%s", offset, diff)
		}
		got = mustCollect(t, ranges(t.Context(), []*disk{target.disk(), base.disk()}, offset))
		if diff := cmp.Diff(joined(from(offset, differentBlocks(base.contents, target.contents))), got); diff != "" {
			t.Fatalf("difference from %d (-want +got):\n%s", offset, diff)
		}
	}
}

func randomSparse(random *rand.Rand) *sparse {
	s := newSparse((1 + random.Int64N(400)) * block) // some exceed a chunk
	for range random.IntN(20) {
		scribble(random, s)
	}
	return s
}

// scribble writes something somewhere, zeros at times.
func scribble(random *rand.Rand, s *sparse) {
	size := int64(len(s.contents))
	at := random.Int64N(size)
	p := make([]byte, min(size-at, 1+random.Int64N(3*block)))
	if random.IntN(3) > 0 {
		p = randomBytes(random, int64(len(p)))
	}
	s.write(p, at)
}

func TestFailures(t *testing.T) {
	const size = 4 * chunk
	broken := errors.New("broken disk")
	full := func(change func(s *sparse)) *sparse {
		s := sparseOf(size, piece{0, size, 1})
		change(s)
		return s
	}
	unread := full(func(s *sparse) { s.failRead, s.failFrom = broken, 2*chunk })
	unsought := full(func(s *sparse) { s.failSeek = broken })
	cases := map[string]struct {
		reason string
		disks  []*disk
		want   []Range
	}{
		"ReadTarget": {reason: "what was found before comes first", disks: []*disk{unread.disk(), newSparse(size).disk()}, want: extents(0, 2*chunk)},
		"ReadBase":   {reason: "either of both", disks: []*disk{newSparse(size).disk(), unread.disk()}, want: extents(0, 2*chunk)},
		"SeekTarget": {reason: "nothing is known of it", disks: []*disk{unsought.disk()}},
		"SeekBase":   {reason: "nothing is known of one of them", disks: []*disk{newSparse(size).disk(), unsought.disk()}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := collect(t, ranges(t.Context(), c.disks, 0))
			if !errors.Is(err, broken) {
				t.Errorf("%s: ended with %v, want %v", c.reason, err, broken)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
	holes := &noHoles{sparse: full(func(*sparse) {})}
	if _, err := collect(t, ranges(t.Context(), []*disk{{file: holes, size: size}}, 0)); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("the end of data is not found: %v", err)
	}
}

// noHoles finds data, and fails to find their end.
type noHoles struct{ *sparse }

func (n *noHoles) Seek(offset int64, whence int) (int64, error) {
	if whence == unix.SEEK_HOLE {
		return 0, fs.ErrInvalid
	}
	return n.sparse.Seek(offset, whence)
}

// TestCancelled: whenever the context ends, so does the search, with its
// error, and without reading on.
func TestCancelled(t *testing.T) {
	const chunks = 8
	base := newSparse(chunks * chunk)
	target := newSparse(chunks * chunk)
	for i := range int64(chunks) { // a block in each chunk
		target.write([]byte{1}, i*chunk)
	}
	for _, disks := range [][]*disk{{target.disk()}, {target.disk(), base.disk()}} {
		for after := range chunks {
			ctx, cancel := context.WithCancel(t.Context())
			target.reads = 0
			var last error
			n := 0
			for _, err := range ranges(ctx, disks, 0) {
				if n == after {
					cancel()
				}
				n++
				last = err
			}
			cancel()
			// One is held back to be joined with the next.
			if after < chunks-2 && !errors.Is(last, context.Canceled) {
				t.Fatalf("%d disks, cancelled at %d: ended with %v after %d", len(disks), after, last, n)
			}
			if target.reads > after+3 {
				t.Errorf("cancelled at %d: %d reads", after, target.reads)
			}
		}
	}
}

// TestStopped: who has enough causes no more reads.
func TestStopped(t *testing.T) {
	target := newSparse(8 * chunk)
	for i := range int64(8) {
		target.write([]byte{1}, i*chunk)
	}
	for range ranges(t.Context(), []*disk{target.disk(), newSparse(8 * chunk).disk()}, 0) {
		break
	}
	if target.reads > 2 {
		t.Errorf("%d reads, want 2", target.reads)
	}
}

// endless is data all over, without a byte of memory.
type endless struct{ *sparse }

func (endless) Seek(offset int64, whence int) (int64, error) {
	if whence == unix.SEEK_HOLE {
		return math.MaxInt64, nil
	}
	return offset, nil
}

// TestLongExtentsAreCut so that who is interrupted has received something.
func TestLongExtentsAreCut(t *testing.T) {
	const size = 3*longest + block
	got := mustCollect(t, ranges(t.Context(), []*disk{{file: endless{}, size: size}}, block))
	want := extents(block, longest, block+longest, longest, block+2*longest, longest)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("extents (-want +got):\n%s", diff)
	}
}
