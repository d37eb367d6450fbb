package idempotent

import (
	"context"
	"errors"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// Node decorates a node-side service. A mount counts as done only while the
// kernel still has it, so that repeating a call heals what was lost.
type Node struct {
	volume.NodeService

	ids locks
}

var _ volume.NodeService = (*Node)(nil)

// NewNode decorates next.
func NewNode(next volume.NodeService) *Node {
	return &Node{NodeService: next}
}

// Stage mounts once.
func (n *Node) Stage(ctx context.Context, req *volume.StageRequest) error {
	unlock, err := lock(ctx, &n.ids, req.ID)
	if err != nil {
		return err
	}
	defer unlock()
	known, err := n.Lookup(ctx, req.ID)
	if errors.Is(err, volume.ErrNotFound) {
		return n.NodeService.Stage(ctx, req)
	}
	if err != nil {
		return err
	}
	if known.Stage != nil {
		matches, err := n.MountMatches(ctx, known, known.Stage.Path)
		if err != nil {
			return err
		}
		if !matches {
			known.Stage = nil
		}
	}
	verdict, err := known.CheckStage(&req.Stage)
	if err != nil || verdict == volume.AlreadyDone {
		return err
	}
	return n.NodeService.Stage(ctx, req)
}

// Unstage lets one call at a time through; the backend cleans the path
// whatever it knows.
func (n *Node) Unstage(ctx context.Context, id volume.ID, path string) error {
	unlock, err := lock(ctx, &n.ids, id)
	if err != nil {
		return err
	}
	defer unlock()
	return n.NodeService.Unstage(ctx, id, path)
}

// Publish mounts once per target. A repeated call may bring something new: the
// kubelet repeats it from time to time where the CSIDriver object says
// requiresRepublish.
func (n *Node) Publish(ctx context.Context, req *volume.TargetRequest) error {
	unlock, err := lock(ctx, &n.ids, req.ID)
	if err != nil {
		return err
	}
	defer unlock()
	known, err := n.Lookup(ctx, req.ID)
	if errors.Is(err, volume.ErrNotFound) {
		return n.NodeService.Publish(ctx, req)
	}
	if err != nil {
		return err
	}
	if err := known.CheckInline(req.Inline); err != nil {
		return err
	}
	verdict, err := known.CheckTarget(&req.Target)
	if err != nil {
		return err
	}
	if verdict == volume.AlreadyDone {
		matches, err := n.MountMatches(ctx, known, req.Target.Path)
		if err != nil {
			return err
		}
		if matches {
			return nil
		}
	}
	return n.NodeService.Publish(ctx, req)
}

// Expand lets one call at a time through.
func (n *Node) Expand(ctx context.Context, req *volume.NodeExpandRequest) (int64, error) {
	unlock, err := lock(ctx, &n.ids, req.ID)
	if err != nil {
		return 0, err
	}
	defer unlock()
	return n.NodeService.Expand(ctx, req)
}

// Reconcile lets one call at a time through.
func (n *Node) Reconcile(ctx context.Context, id volume.ID) error {
	unlock, err := lock(ctx, &n.ids, id)
	if err != nil {
		return err
	}
	defer unlock()
	return n.NodeService.Reconcile(ctx, id)
}

// Unpublish lets one call at a time through; the backend cleans the path
// whatever it knows.
func (n *Node) Unpublish(ctx context.Context, id volume.ID, path string) error {
	unlock, err := lock(ctx, &n.ids, id)
	if err != nil {
		return err
	}
	defer unlock()
	return n.NodeService.Unpublish(ctx, id, path)
}
