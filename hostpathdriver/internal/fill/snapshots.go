package fill

import (
	"context"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

func (s *Services) snapshotTask(made *volume.Snapshot) task {
	return task{id: made.ID, undo: func(ctx context.Context) error {
		return s.Services.DeleteSnapshot(ctx, made.ID)
	}}
}

// CreateSnapshot implements volume.SnapshotService. It returns a snapshot that
// is complete: the source may change while it is not (CSI v1.13,
// "CreateSnapshot": it blocks until the snapshot is cut).
func (s *Services) CreateSnapshot(ctx context.Context, req *volume.SnapshotRequest) (*volume.Snapshot, error) {
	made, err := s.Services.CreateSnapshot(ctx, req)
	if err != nil || !made.Filling {
		return made, err
	}
	if err := s.fill(ctx, s.snapshotTask(made)); err != nil {
		return nil, err
	}
	made, err = s.GetSnapshot(ctx, made.ID)
	return made, filled(err, err == nil && made.Filling)
}

// DeleteSnapshot implements volume.SnapshotService.
func (s *Services) DeleteSnapshot(ctx context.Context, id volume.ID) error {
	return s.remove(ctx, id, func() error { return s.Services.DeleteSnapshot(ctx, id) })
}
