package extent

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"math"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

const (
	// chunk is how many bytes are compared at a time; between two of them the
	// context is looked at.
	chunk = 1 << 20
	// longest is where an extent is cut although it goes on: a caller
	// that is interrupted loses what was not yielded yet.
	longest = 1 << 30
)

// sequence is a number of extents, or the error that ended it.
type sequence = iter.Seq2[volume.Extent, error]

// ranges yields the data of one disk, or the difference of two, within the
// first one.
func ranges(ctx context.Context, disks []*disk, from int64) sequence {
	found := allocated(ctx, disks, from)
	if len(disks) > 1 {
		found = different(found, disks[0], disks[1])
	}
	return merged(found)
}

// allocated yields the blocks in which any of the disks has data, in chunks.
func allocated(ctx context.Context, disks []*disk, from int64) sequence {
	return func(yield func(volume.Extent, error) bool) {
		for at := from - from%volume.BlockSize; ; {
			run, err := next(disks, at)
			if err != nil {
				yield(volume.Extent{}, err)
				return
			}
			if run.Length == 0 {
				return
			}
			for piece := range run.Cut(chunk) {
				if err := ctx.Err(); err != nil {
					yield(volume.Extent{}, err)
					return
				}
				if !yield(piece, nil) {
					return
				}
			}
			at = run.End()
		}
	}
}

// next returns the first blocks from an offset on in which one of the disks
// has data, and an extent without length when there are none.
func next(disks []*disk, from int64) (volume.Extent, error) {
	first, end := int64(math.MaxInt64), int64(0)
	for _, d := range disks {
		dataStart, dataEnd, err := d.data(from)
		if err != nil {
			return volume.Extent{}, err
		}
		if dataStart < first {
			first, end = dataStart, dataEnd
		}
	}
	if first >= disks[0].size {
		return volume.Extent{}, nil
	}
	first -= first % volume.BlockSize
	end = (end + volume.BlockSize - 1) / volume.BlockSize * volume.BlockSize
	return volume.Extent{Offset: first, Length: min(end, disks[0].size) - first}, nil
}

// different leaves the blocks in which two disks differ.
func different(pieces sequence, a, b *disk) sequence {
	return func(yield func(volume.Extent, error) bool) {
		most := min(chunk, a.size)
		left, right := make([]byte, most), make([]byte, most)
		for piece, err := range pieces {
			if err == nil && shared(a, b, piece) {
				continue
			}
			if err == nil {
				err = errors.Join(a.read(left[:piece.Length], piece.Offset), b.read(right[:piece.Length], piece.Offset))
			}
			if err != nil {
				yield(volume.Extent{}, err)
				return
			}
			if bytes.Equal(left[:piece.Length], right[:piece.Length]) {
				continue
			}
			for block := range piece.Cut(volume.BlockSize) {
				start, end := block.Offset-piece.Offset, block.End()-piece.Offset
				if !bytes.Equal(left[start:end], right[start:end]) && !yield(block, nil) {
					return
				}
			}
		}
	}
}

// merged joins extents that touch each other.
func merged(extents sequence) sequence {
	return func(yield func(volume.Extent, error) bool) {
		var held volume.Extent
		for e, err := range extents {
			if err == nil && e.Offset == held.End() && held.Length+e.Length <= longest {
				held.Length += e.Length
				continue
			}
			if held.Length > 0 && !yield(held, nil) {
				return
			}
			if err != nil {
				yield(volume.Extent{}, err)
				return
			}
			held = e
		}
		if held.Length > 0 {
			yield(held, nil)
		}
	}
}
