package extent

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"math"
)

const (
	// chunk is how many bytes are compared at a time; the context is checked between two chunks.
	chunk = 1 << 20
	// longest is the greatest size of a range: a caller that is interrupted loses the range that was not yielded yet.
	longest = 1 << 30
)

// sequence is a number of ranges, or the error that ended it.
type sequence = iter.Seq2[Range, error]

// ranges yields the data of one disk, or the difference of two, within the first one.
func ranges(ctx context.Context, disks []*disk, from int64) sequence {
	found := allocated(ctx, disks, from)
	if len(disks) > 1 {
		found = different(found, disks[0], disks[1])
	}
	return merged(found)
}

// allocated yields the blocks in which any of the disks has data, in chunks.
func allocated(ctx context.Context, disks []*disk, from int64) sequence {
	return func(yield func(Range, error) bool) {
		for at := from - from%BlockSize; ; {
			run, err := next(disks, at)
			if err != nil {
				yield(Range{}, err)
				return
			}
			if run.Size == 0 {
				return
			}
			for piece := range run.cut(chunk) {
				if err := ctx.Err(); err != nil {
					yield(Range{}, err)
					return
				}
				if !yield(piece, nil) {
					return
				}
			}
			at = run.end()
		}
	}
}

// next returns the first blocks from an offset on in which one of the disks has data, and an empty range if there are none.
func next(disks []*disk, from int64) (Range, error) {
	first, end := int64(math.MaxInt64), int64(0)
	for _, d := range disks {
		dataStart, dataEnd, err := d.data(from)
		if err != nil {
			return Range{}, err
		}
		if dataStart < first {
			first, end = dataStart, dataEnd
		}
	}
	if first >= disks[0].size {
		return Range{}, nil
	}
	first -= first % BlockSize
	end = (end + BlockSize - 1) / BlockSize * BlockSize
	return Range{Offset: first, Size: min(end, disks[0].size) - first}, nil
}

// different leaves the blocks in which two disks differ.
func different(pieces sequence, a, b *disk) sequence {
	return func(yield func(Range, error) bool) {
		most := min(chunk, a.size)
		left, right := make([]byte, most), make([]byte, most)
		for piece, err := range pieces {
			if err == nil && shared(a, b, piece) {
				continue
			}
			if err == nil {
				err = errors.Join(a.read(left[:piece.Size], piece.Offset), b.read(right[:piece.Size], piece.Offset))
			}
			if err != nil {
				yield(Range{}, err)
				return
			}
			if bytes.Equal(left[:piece.Size], right[:piece.Size]) {
				continue
			}
			for block := range piece.cut(BlockSize) {
				start, end := block.Offset-piece.Offset, block.end()-piece.Offset
				if !bytes.Equal(left[start:end], right[start:end]) && !yield(block, nil) {
					return
				}
			}
		}
	}
}

// merged joins adjacent ranges.
func merged(pieces sequence) sequence {
	return func(yield func(Range, error) bool) {
		var held Range
		for e, err := range pieces {
			if err == nil && e.Offset == held.end() && held.Size+e.Size <= longest {
				held.Size += e.Size
				continue
			}
			if held.Size > 0 && !yield(held, nil) {
				return
			}
			if err != nil {
				yield(Range{}, err)
				return
			}
			held = e
		}
		if held.Size > 0 {
			yield(held, nil)
		}
	}
}
