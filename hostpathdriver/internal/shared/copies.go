package shared

import (
	"context"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// Copies decorates a service that fills volumes and snapshots.
type Copies struct {
	next volume.CopyService
	gate *gate
}

var _ volume.CopyService = (*Copies)(nil)

// Unfilled implements volume.CopyService.
func (c *Copies) Unfilled(ctx context.Context) ([]volume.ID, error) {
	return in(ctx, c.gate, reads, func() ([]volume.ID, error) { return c.next.Unfilled(ctx) })
}

// Copy implements volume.CopyService. It needs no turn: a copy may take hours,
// in which other processes do their work.
func (c *Copies) Copy(ctx context.Context, id volume.ID, then func(context.Context) error) error {
	return c.next.Copy(ctx, id, then)
}

// Complete implements volume.CopyService.
func (c *Copies) Complete(ctx context.Context, id volume.ID) error {
	return change(ctx, c.gate, func() error { return c.next.Complete(ctx, id) })
}
