package fill

import (
	"context"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// groupTask is one copy, whatever there are snapshots: all are complete at once.
func (s *Services) groupTask(made *volume.Group) task {
	return task{id: made.ID, undo: func(ctx context.Context) error {
		return s.Services.DeleteGroup(ctx, made.ID, made.Members)
	}}
}

// CreateGroup implements volume.GroupService. It returns a group whose
// snapshots are complete.
func (s *Services) CreateGroup(ctx context.Context, req *volume.GroupRequest) (*volume.Group, error) {
	made, err := s.Services.CreateGroup(ctx, req)
	if err != nil || !made.Filling() {
		return made, err
	}
	if err := s.fill(ctx, s.groupTask(made)); err != nil {
		return nil, err
	}
	made, err = s.GetGroup(ctx, made.ID, made.Members)
	return made, filled(err, err == nil && made.Filling())
}

// DeleteGroup implements volume.GroupService.
func (s *Services) DeleteGroup(ctx context.Context, id volume.ID, members []volume.ID) error {
	return s.remove(ctx, id, func() error { return s.Services.DeleteGroup(ctx, id, members) })
}
