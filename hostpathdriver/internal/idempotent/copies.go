package idempotent

import (
	"context"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// Copies decorates a service that fills volumes and snapshots.
type Copies struct {
	volume.CopyService

	ids *locks
	// around returns what else changes with an id; nil when nothing does.
	around func(ctx context.Context, id volume.ID) ([]volume.ID, error)
}

var _ volume.CopyService = (*Copies)(nil)

// Complete lets one call at a time through, for all that it changes: nothing
// of it is deleted meanwhile.
func (c *Copies) Complete(ctx context.Context, id volume.ID) error {
	var more []volume.ID
	if c.around != nil {
		var err error
		if more, err = c.around(ctx, id); err != nil {
			return err
		}
	}
	unlock, err := lockAll(ctx, c.ids, append(more, id)...)
	if err != nil {
		return err
	}
	defer unlock()
	return c.CopyService.Complete(ctx, id)
}
