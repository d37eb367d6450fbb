package extent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// Source is a volume.MetadataService over the files of a backend.
type Source struct {
	// Disk looks a snapshot up, or returns volume.ErrNotFound. It is called
	// once for each snapshot of a request.
	Disk func(ctx context.Context, id volume.ID) (*volume.SnapshotDisk, error)
}

var _ volume.MetadataService = Source{}

// Allocated implements volume.MetadataService. Blocks of zeros that were
// written are among the result.
func (s Source) Allocated(ctx context.Context, req *volume.AllocatedRequest) (*volume.Metadata, error) {
	target, err := s.lookUp(ctx, req.Snapshot)
	if err != nil {
		return nil, err
	}
	return metadata(ctx, req.Offset, target)
}

// Delta implements volume.MetadataService. It compares contents: a block that
// was never written, or is beyond the end of the base, is one of zeros.
func (s Source) Delta(ctx context.Context, req *volume.DeltaRequest) (*volume.Metadata, error) {
	base, err := s.lookUp(ctx, req.Base)
	if err != nil {
		return nil, err
	}
	target, err := s.lookUp(ctx, req.Target)
	if err != nil {
		return nil, err
	}
	if err := target.CheckBase(base); err != nil {
		return nil, err
	}
	return metadata(ctx, req.Offset, target, base)
}

func (s Source) lookUp(ctx context.Context, id volume.ID) (*volume.SnapshotDisk, error) {
	disk, err := s.Disk(ctx, id)
	if err != nil {
		return nil, err
	}
	return disk, disk.CheckContents()
}

// metadata describes the first snapshot, in comparison with the second one if
// there is one. Files are open while the caller ranges over the extents.
func metadata(ctx context.Context, offset int64, snapshots ...*volume.SnapshotDisk) (*volume.Metadata, error) {
	if err := snapshots[0].CheckOffset(offset); err != nil {
		return nil, err
	}
	extents := func(yield func(volume.Extent, error) bool) {
		disks := make([]*disk, 0, len(snapshots))
		for _, snapshot := range snapshots {
			opened, err := openSnapshot(snapshot)
			if err != nil {
				yield(volume.Extent{}, err)
				return
			}
			defer opened.Close()
			disks = append(disks, opened)
		}
		ranges(ctx, disks, offset)(yield)
	}
	return &volume.Metadata{Capacity: snapshots[0].Size, Extents: extents}, nil
}

func openSnapshot(s *volume.SnapshotDisk) (*disk, error) {
	d, err := open(s.Path, s.Size)
	switch {
	case errors.Is(err, fs.ErrNotExist): // deleted since it was looked up
		return nil, fmt.Errorf("snapshot %q: %w: %w", s.ID, volume.ErrNotFound, err)
	case err != nil:
		return nil, fmt.Errorf("snapshot %q: %w", s.ID, err)
	}
	return d, nil
}
