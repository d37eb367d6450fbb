package shared

import (
	"context"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// Snapshots decorates a service that keeps snapshots.
type Snapshots struct {
	next volume.SnapshotService
	gate *gate
}

var _ volume.SnapshotService = (*Snapshots)(nil)

// CreateSnapshot implements volume.SnapshotService.
func (s *Snapshots) CreateSnapshot(ctx context.Context, req *volume.SnapshotRequest) (*volume.Snapshot, error) {
	return in(ctx, s.gate, changes, func() (*volume.Snapshot, error) { return s.next.CreateSnapshot(ctx, req) })
}

// DeleteSnapshot implements volume.SnapshotService.
func (s *Snapshots) DeleteSnapshot(ctx context.Context, id volume.ID) error {
	return change(ctx, s.gate, func() error { return s.next.DeleteSnapshot(ctx, id) })
}

// GetSnapshot implements volume.SnapshotService.
func (s *Snapshots) GetSnapshot(ctx context.Context, id volume.ID) (*volume.Snapshot, error) {
	return in(ctx, s.gate, reads, func() (*volume.Snapshot, error) { return s.next.GetSnapshot(ctx, id) })
}

// FindSnapshot implements volume.SnapshotService.
func (s *Snapshots) FindSnapshot(ctx context.Context, name string) (*volume.Snapshot, error) {
	return in(ctx, s.gate, reads, func() (*volume.Snapshot, error) { return s.next.FindSnapshot(ctx, name) })
}

// ListSnapshots implements volume.SnapshotService. Pages are as those of
// List.
func (s *Snapshots) ListSnapshots(ctx context.Context, req volume.SnapshotListRequest) (*volume.SnapshotPage, error) {
	return in(ctx, s.gate, reads, func() (*volume.SnapshotPage, error) { return s.next.ListSnapshots(ctx, req) })
}
