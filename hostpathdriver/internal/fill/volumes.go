package fill

import (
	"context"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

func (s *Services) volumeTask(v *volume.Volume) task {
	return task{id: v.ID, undo: func(ctx context.Context) error { return s.Services.Delete(ctx, v.ID) }}
}

// Create implements volume.Service. It returns a volume that can be used.
func (s *Services) Create(ctx context.Context, req *volume.CreateRequest) (*volume.Volume, error) {
	made, err := s.Services.Create(ctx, req)
	if err != nil || !made.Filling {
		return made, err
	}
	if err := s.fill(ctx, s.volumeTask(made)); err != nil {
		return nil, err
	}
	made, err = s.Get(ctx, made.ID)
	return made, filled(err, err == nil && made.Filling)
}

// Delete implements volume.Service.
func (s *Services) Delete(ctx context.Context, id volume.ID) error {
	return s.remove(ctx, id, func() error { return s.Services.Delete(ctx, id) })
}
