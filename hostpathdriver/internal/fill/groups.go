package fill

import (
	"context"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

func (s *Services) groupTask(made *volume.Group) task {
	t := task{id: made.ID, undo: func(ctx context.Context) error {
		return s.Services.DeleteGroup(ctx, made.ID, made.Members)
	}}
	for _, member := range made.Snapshots {
		if member.Filling {
			t.parts = append(t.parts, member.ID)
		}
	}
	return t
}

// memberTask is the task of a whole group.
func (s *Services) memberTask(ctx context.Context, group volume.ID) (task, error) {
	found, err := s.GetGroup(ctx, group, nil)
	if err != nil {
		return task{}, err
	}
	return s.groupTask(found), nil
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
