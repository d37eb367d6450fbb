package extent

import (
	"bytes"
	"io"
	"iter"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/csikittest/seeds"
)

// block shortens the unit in tables.
const block = int64(BlockSize)

// sector is the unit of the holes of a sparse: smaller than a block, as that of some file systems.
const sector = 512

// sparse is a file in memory that knows its holes exactly, counts calls, and
// fails on demand.
type sparse struct {
	contents []byte
	written  []bool // by sector

	reads, seeks int
	// failRead and failSeek are returned from the given offset on.
	failRead, failSeek error
	failFrom           int64
}

func newSparse(size int64) *sparse {
	return &sparse{contents: make([]byte, size), written: make([]bool, (size+sector-1)/sector)}
}

func (s *sparse) write(p []byte, at int64) {
	copy(s.contents[at:], p)
	for i := at / sector; i*sector < at+int64(len(p)); i++ {
		s.written[i] = true
	}
}

func (s *sparse) ReadAt(p []byte, at int64) (int, error) {
	s.reads++
	if s.failRead != nil && at+int64(len(p)) > s.failFrom {
		return 0, s.failRead
	}
	return bytes.NewReader(s.contents).ReadAt(p, at)
}

func (s *sparse) Seek(offset int64, whence int) (int64, error) {
	s.seeks++
	if s.failSeek != nil && offset >= s.failFrom {
		return 0, s.failSeek
	}
	size := int64(len(s.contents))
	if offset >= size {
		return 0, &os.PathError{Op: "seek", Path: "sparse", Err: unix.ENXIO}
	}
	for at := offset; at < size; at = (at/sector + 1) * sector {
		if s.written[at/sector] == (whence == unix.SEEK_DATA) {
			return at, nil
		}
	}
	if whence == unix.SEEK_DATA {
		return 0, &os.PathError{Op: "seek", Path: "sparse", Err: unix.ENXIO}
	}
	return size, nil
}

func (s *sparse) Close() error { return nil }

// Fd is no file: the kernel knows nothing of it.
func (s *sparse) Fd() uintptr { return math.MaxInt32 }

// disk is the file at its own length.
func (s *sparse) disk() *disk { return &disk{file: s, size: int64(len(s.contents))} }

// extents makes a list of offsets and lengths in turn.
func extents(numbers ...int64) []Range {
	var list []Range
	for i := 0; i < len(numbers); i += 2 {
		list = append(list, Range{Offset: numbers[i], Size: numbers[i+1]})
	}
	return list
}

// allocatedBlocks is what Allocated has to find, one extent for each block.
func (s *sparse) allocatedBlocks() []Range {
	var list []Range
	for at := int64(0); at < int64(len(s.contents)); at += block {
		for i := at / sector; i < min(int64(len(s.written)), (at+block)/sector); i++ {
			if s.written[i] {
				list = append(list, Range{Offset: at, Size: block})
				break
			}
		}
	}
	return list
}

// differentBlocks compares contents byte by byte.
func differentBlocks(base, target []byte) []Range {
	at := func(p []byte, i int) byte {
		if i < len(p) {
			return p[i]
		}
		return 0
	}
	var list []Range
	for i := range target {
		start := int64(i) / block * block
		if at(base, i) != target[i] && (len(list) == 0 || list[len(list)-1].Offset != start) {
			list = append(list, Range{Offset: start, Size: block})
		}
	}
	return list
}

// joined makes of blocks what merged makes.
func joined(blocks []Range) []Range {
	var list []Range
	for _, e := range blocks {
		if last := len(list) - 1; last >= 0 && list[last].end() == e.Offset {
			list[last].Size += e.Size
		} else {
			list = append(list, e)
		}
	}
	return list
}

// from leaves the blocks that do not end before an offset.
func from(offset int64, blocks []Range) []Range {
	for i, e := range blocks {
		if offset < e.end() {
			return blocks[i:]
		}
	}
	return nil
}

// collect ranges over all, and returns the error that ended it.
func collect(t *testing.T, ranges iter.Seq2[Range, error]) ([]Range, error) {
	t.Helper()
	var list []Range
	var failed error
	for e, err := range ranges {
		if failed != nil {
			t.Fatalf("%v, %v after the error %v", e, err, failed)
		}
		if err != nil {
			failed = err
			continue
		}
		list = append(list, e)
	}
	return list, failed
}

func mustCollect(t *testing.T, ranges iter.Seq2[Range, error]) []Range {
	t.Helper()
	list, err := collect(t, ranges)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// files are snapshots of one volume, by name.
type files struct {
	t   *testing.T
	dir string
	all map[string]File
}

func newFiles(t *testing.T) *files {
	return &files{t: t, dir: t.TempDir(), all: map[string]File{}}
}

// add makes a file with that many bytes.
func (f *files) add(name string, size int64) File {
	f.t.Helper()
	d := File{Path: filepath.Join(f.dir, name), Size: size}
	file, err := os.Create(d.Path)
	if err != nil {
		f.t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(size); err != nil {
		f.t.Fatal(err)
	}
	f.all[name] = d
	return d
}

func (f *files) write(d File, p []byte, at int64) {
	f.t.Helper()
	file, err := os.OpenFile(d.Path, os.O_WRONLY, 0)
	if err != nil {
		f.t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteAt(p, at); err != nil {
		f.t.Fatal(err)
	}
}

// contents are all bytes of the disk.
func (f *files) contents(d File) []byte {
	f.t.Helper()
	p := make([]byte, d.Size)
	file, err := os.Open(d.Path)
	if err != nil {
		f.t.Fatal(err)
	}
	defer file.Close()
	if _, err := io.ReadFull(file, p); err != nil && err != io.ErrUnexpectedEOF && err != io.EOF {
		f.t.Fatal(err)
	}
	return p
}

func (f *files) allocated(name string, offset int64) []Range {
	f.t.Helper()
	return mustCollect(f.t, Allocated(f.t.Context(), f.all[name], offset))
}

func (f *files) different(base, name string, offset int64) []Range {
	f.t.Helper()
	return mustCollect(f.t, Different(f.t.Context(), f.all[name], f.all[base], offset))
}

// seeded returns the random numbers of the test's seed.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(seeds.One(t), 0))
}

func randomBytes(random *rand.Rand, n int64) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(random.Uint32())
	}
	return p
}
