package idempotent

import (
	"context"

	"github.com/longshore-csi/longshore/csikit/keymutex"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// Snapshots decorates a service that keeps snapshots.
type Snapshots struct {
	volume.SnapshotService

	names keymutex.Locks[string]
	ids   *locks
}

var _ volume.SnapshotService = (*Snapshots)(nil)

// CreateSnapshot returns the snapshot of that name if it is what the request
// asks for, and makes it if there is none.
func (s *Snapshots) CreateSnapshot(ctx context.Context, req *volume.SnapshotRequest) (*volume.Snapshot, error) {
	return maker[*volume.Snapshot]{
		find: s.FindSnapshot,
		get:  s.GetSnapshot,
		same: func(found *volume.Snapshot) error { return found.CheckSame(req) },
		from: []volume.ID{req.Source},
		make: func(ctx context.Context) (*volume.Snapshot, error) { return s.SnapshotService.CreateSnapshot(ctx, req) },
	}.once(ctx, &s.names, s.ids, req.Name)
}

// DeleteSnapshot answers nil for a snapshot that does not exist.
func (s *Snapshots) DeleteSnapshot(ctx context.Context, id volume.ID) error {
	unlock, err := lock(ctx, s.ids, id)
	if err != nil {
		return err
	}
	defer unlock()
	return deleted(s.SnapshotService.DeleteSnapshot(ctx, id))
}
