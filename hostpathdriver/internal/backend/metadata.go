package backend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path/filepath"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/state"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/contents"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/extent"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// Blocks returns the blocks of a snapshot. It reads the records on disk, so that any process can answer: calls that stream are not passed on.
func (c *Controller) Blocks(ctx context.Context, req *driverkit.BlocksRequest) (*driverkit.Blocks, error) {
	target, file, err := c.snapshotDisk(req.Snapshot)
	if err != nil {
		return nil, err
	}
	answer := &driverkit.Blocks{VolumeSize: target.Size, BlockSize: c.cfg.BlockSize}
	if req.Base == "" {
		answer.Ranges = untilDeleted(extent.Allocated(ctx, extent.File{Path: file, Size: target.Size}, req.Offset))
		return answer, nil
	}
	base, baseFile, err := c.snapshotDisk(req.Base)
	if err != nil {
		return nil, err
	}
	if base.Source != target.Source {
		return nil, fmt.Errorf("base_snapshot_id: %q is a snapshot of volume %q, target_snapshot_id %q one of volume %q: %w",
			base.ID, base.Source, target.ID, target.Source, driverkit.ErrInvalid)
	}
	answer.Ranges = untilDeleted(extent.Different(ctx, extent.File{Path: file, Size: target.Size}, extent.File{Path: baseFile, Size: base.Size}, req.Offset))
	return answer, nil
}

// untilDeleted yields ranges; a snapshot that was deleted meanwhile is an ErrNotFound.
func untilDeleted(found iter.Seq2[extent.Range, error]) iter.Seq2[driverkit.BlockRange, error] {
	return func(yield func(driverkit.BlockRange, error) bool) {
		for r, err := range found {
			if errors.Is(err, fs.ErrNotExist) {
				err = fmt.Errorf("%w: %w", driverkit.ErrNotFound, err)
			}
			if !yield(driverkit.BlockRange(r), err) {
				return
			}
		}
	}
}

// snapshotDisk returns the record of a snapshot and its file.
func (c *Controller) snapshotDisk(id string) (*volume.Snapshot, string, error) {
	if err := volume.CheckID(id); err != nil {
		return nil, "", driverkit.NotFound("snapshot", id)
	}
	found, err := state.View[volume.Snapshot](filepath.Join(c.cfg.StateDir, snapshotRecordsDir), snapshotKind).Get(id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, "", driverkit.NotFound("snapshot", id)
	case err != nil:
		return nil, "", err
	case !found.Form.Disk:
		return nil, "", fmt.Errorf("snapshot %q: its volume %q is no device, metadata describe blocks: %w", id, found.Source, driverkit.ErrInvalid)
	}
	return &found, contents.At(cmp.Or(found.Root, c.cfg.StateDir), contents.Snapshots, c.cfg.Mounter).Disk(id), nil
}
