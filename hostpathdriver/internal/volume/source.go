package volume

import (
	"context"
	"fmt"
)

// Source is the content source of a volume: a snapshot or another volume.
type Source struct {
	Snapshot ID `json:"snapshot,omitempty"`
	Volume   ID `json:"volume,omitempty"`
}

// String names the source for messages.
func (s Source) String() string {
	if s.Snapshot != "" {
		return fmt.Sprintf("snapshot %q", s.Snapshot)
	}
	return fmt.Sprintf("volume %q", s.Volume)
}

// IDs are the ids of the objects that must exist; none for no source.
func (s *Source) IDs() []ID {
	switch {
	case s == nil:
		return nil
	case s.Snapshot != "":
		return []ID{s.Snapshot}
	}
	return []ID{s.Volume}
}

// Origin is the part of a source that a copy depends on.
type Origin struct {
	Source
	Form
	// Size is the least size in bytes of a copy.
	Size int64
	// Node is the node of the source; empty means every node.
	Node string
	// Pool has the contents of the source: copies in the same pool can share blocks.
	Pool string
	// Filling says that the contents of the source are still being copied.
	Filling bool
}

// CheckFilled reports whether contents are complete. If not, the error is an
// ErrPrecondition.
func (o *Origin) CheckFilled() error {
	if o.Filling {
		return fmt.Errorf("%v: its own contents are still being copied: %w", o.Source, ErrPrecondition)
	}
	return nil
}

// Origin describes a volume as a source.
func (v *Volume) Origin() *Origin {
	return &Origin{Source: Source{Volume: v.ID}, Form: v.Form(), Size: v.Capacity, Node: v.Node, Pool: v.Pool, Filling: v.Filling}
}

// Origin describes a snapshot as a source.
func (s *Snapshot) Origin() *Origin {
	return &Origin{Source: Source{Snapshot: s.ID}, Form: s.Form, Size: s.Size, Node: s.Node, Pool: s.Pool, Filling: s.Filling}
}

// CheckCreate reports whether the request can create a volume from the origin: one
// that is not smaller (else ErrOutOfRange), and on the same node (ErrExhausted if
// the requirements exclude it, so that the CO looks for another node).
func (o *Origin) CheckCreate(req *CreateRequest) error {
	if err := o.CheckFilled(); err != nil {
		return err
	}
	if req.Range.Limit > 0 && req.Range.Limit < o.Size {
		return fmt.Errorf("capacity range: limit_bytes %d is below the %d bytes of %v: %w", req.Range.Limit, o.Size, o.Source, ErrOutOfRange)
	}
	if req.Range.Required > 0 && req.Range.Required < o.Size {
		return fmt.Errorf("capacity range: required_bytes %d are below the %d bytes of %v: %w", req.Range.Required, o.Size, o.Source, ErrOutOfRange)
	}
	if !req.Requirements.Allow(o.Node) {
		return fmt.Errorf("place volume: %v is on node %q, which the accessibility requirements exclude: %w", o.Source, o.Node, ErrExhausted)
	}
	return nil
}

// CopyService fills volumes and snapshots that have a source. Copying may take longer
// than a call, and is no part of the turns that processes take: it changes only
// contents that are not in use yet.
type CopyService interface {
	// Unfilled returns what has contents that are not complete: volumes,
	// snapshots, and groups for their snapshots.
	Unfilled(ctx context.Context) ([]ID, error)
	// Copy makes contents complete, and calls then while nobody else can copy. It
	// goes on where an earlier copy came to its end; where nothing is to be done it
	// does not call then. ErrBusy while another process copies, ErrNotFound when there is no such thing any more.
	// A group is one copy, and ErrConcurrentWrite when somebody wrote meanwhile: the next
	// one may find a moment at which nobody does.
	Copy(ctx context.Context, id ID, then func(context.Context) error) error
	// Complete makes the record say what Copy has done: that of a group for all
	// of its snapshots at once.
	Complete(ctx context.Context, id ID) error
}
