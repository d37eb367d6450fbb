package volume

import (
	"context"
	"fmt"
	"iter"
)

// MetadataService lists the blocks that a backup of a snapshot has to read (CSI v1.13,
// "Snapshot Metadata Service RPCs"). Snapshots of disks have metadata, those
// of directories have none.
type MetadataService interface {
	// Allocated finds the blocks that were ever written.
	Allocated(ctx context.Context, req *AllocatedRequest) (*Metadata, error)
	// Delta finds the blocks that differ from an earlier snapshot of the same volume.
	Delta(ctx context.Context, req *DeltaRequest) (*Metadata, error)
}

// AllocatedRequest asks for the metadata of one snapshot.
type AllocatedRequest struct {
	Snapshot ID
	// Offset in bytes is where to begin.
	Offset int64
}

// Check refuses ids that cannot be names of files with an ErrInvalid.
func (r *AllocatedRequest) Check() error {
	return checkName("snapshot id", string(r.Snapshot), MaxIDLength)
}

// DeltaRequest asks for the difference of two snapshots.
type DeltaRequest struct {
	Base, Target ID
	// Offset in bytes is where to begin.
	Offset int64
}

// Check refuses ids that cannot be names of files with an ErrInvalid.
func (r *DeltaRequest) Check() error {
	if err := checkName("base snapshot id", string(r.Base), MaxIDLength); err != nil {
		return err
	}
	return checkName("target snapshot id", string(r.Target), MaxIDLength)
}

// Metadata is the answer to both requests.
type Metadata struct {
	// Capacity is the size of the (target) snapshot in bytes.
	Capacity int64
	// Extents yields ranges in ascending order that do not overlap. The first
	// one may begin before the offset that was asked for, and never ends
	// before it. An error is the last thing it yields; without one everything
	// was found. It works as long as the context of the request.
	Extents iter.Seq2[Extent, error]
}

// Extent is a range of a disk in bytes. Both numbers are multiples of
// BlockSize, as the sizes of disks are.
type Extent struct {
	Offset, Length int64
}

// End is the offset after the last byte.
func (e Extent) End() int64 { return e.Offset + e.Length }

// Cut yields the range in pieces of the given size; the last one may be
// smaller.
func (e Extent) Cut(size int64) iter.Seq[Extent] {
	return func(yield func(Extent) bool) {
		for at := e.Offset; at < e.End(); at += size {
			if !yield(Extent{Offset: at, Length: min(size, e.End()-at)}) {
				return
			}
		}
	}
}

// SnapshotDisk is what the rules of metadata have to know of a snapshot.
type SnapshotDisk struct {
	ID ID
	// Volume is the volume that the snapshot was made of.
	Volume ID
	// Path is the file with the contents; empty when they are a directory.
	Path string
	// Size is the capacity in bytes that the volume had.
	Size int64
	// Filling says that the contents are not complete yet.
	Filling bool
}

// CheckContents reports whether there are contents to look at: an ErrInvalid
// for a directory, an ErrPrecondition for a copy that is not complete.
func (d *SnapshotDisk) CheckContents() error {
	switch {
	case d.Path == "":
		return fmt.Errorf("snapshot %q: its volume %q is no device, metadata describe blocks: %w", d.ID, d.Volume, ErrInvalid)
	case d.Filling:
		return fmt.Errorf("snapshot %q: its contents are still being copied: %w", d.ID, ErrPrecondition)
	}
	return nil
}

// CheckOffset reports whether metadata can begin at an offset. If not, the error
// is an ErrOutOfRange (CSI v1.13, "GetMetadataAllocated Errors"). The end is
// allowed: it is the offset of a client that resumes after the last block.
func (d *SnapshotDisk) CheckOffset(offset int64) error {
	if offset < 0 || offset > d.Size {
		return fmt.Errorf("starting offset %d: snapshot %q has %d bytes: %w", offset, d.ID, d.Size, ErrOutOfRange)
	}
	return nil
}

// CheckBase reports whether the difference from a base makes sense: an
// ErrInvalid for the snapshot of another volume. Sizes may differ, the volume
// may have been expanded in between. Which one is older is not looked at: the
// ranges that differ are the same both ways, and clocks are set back at times.
func (d *SnapshotDisk) CheckBase(base *SnapshotDisk) error {
	if d.Volume != base.Volume {
		return fmt.Errorf("base snapshot %q: is one of volume %q, target snapshot %q is one of volume %q: %w",
			base.ID, base.Volume, d.ID, d.Volume, ErrInvalid)
	}
	return nil
}
