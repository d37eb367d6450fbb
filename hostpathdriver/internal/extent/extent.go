// Package extent finds out which ranges of a file hold data, and in which ranges two files differ, for drivers whose snapshots are sparse files. It asks the
// file system for holes, and for blocks that both files share, and does not read those.
//
// The files must not change meanwhile; they may be deleted. Do not use it over a storage system that tracks changes itself: asking that is cheaper than
// comparing.
package extent

import (
	"context"
	"iter"
)

// BlockSize is the unit of ranges in bytes: each begins at a multiple of it, and ends at a multiple or at the end of the file.
const BlockSize = 4096

// Range is a part of a volume.
type Range struct {
	// Offset is the first byte, Size the number of bytes.
	Offset, Size int64
}

// File is a regular file with the contents of a volume.
type File struct {
	// Path is the path of the file.
	Path string
	// Size is the size of the volume in bytes. Where the file is shorter the volume has zeros; where it is longer the rest is ignored.
	Size int64
}

// Allocated yields the ranges in which a file has data, from the block of an offset on, in ascending order, merged, of at most 1 GiB each. Zeros that were
// written are data. It ends with an error: that of ctx, fs.ErrNotExist if the file does not exist when the iteration begins, or the kernel's.
func Allocated(ctx context.Context, file File, offset int64) iter.Seq2[Range, error] {
	return search(ctx, offset, file)
}

// Different yields the ranges of a file whose contents differ from those of the base, else as Allocated. A block that was never written, or is after the
// end of the base, has zeros.
func Different(ctx context.Context, file, base File, offset int64) iter.Seq2[Range, error] {
	return search(ctx, offset, file, base)
}

// search yields the ranges of the first file, in comparison with the second one if there is one. Files are open during the iteration.
func search(ctx context.Context, offset int64, files ...File) sequence {
	return func(yield func(Range, error) bool) {
		disks := make([]*disk, 0, len(files))
		for _, file := range files {
			opened, err := open(file)
			if err != nil {
				yield(Range{}, err)
				return
			}
			defer opened.Close()
			disks = append(disks, opened)
		}
		ranges(ctx, disks, offset)(yield)
	}
}

// end is the offset after the last byte.
func (r Range) end() int64 { return r.Offset + r.Size }

// cut yields the range in pieces of a size; the last one may be smaller.
func (r Range) cut(size int64) iter.Seq[Range] {
	return func(yield func(Range) bool) {
		for at := r.Offset; at < r.end(); at += size {
			if !yield(Range{Offset: at, Size: min(size, r.end()-at)}) {
				return
			}
		}
	}
}
