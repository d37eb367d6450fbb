package backend

import (
	"context"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/ownership"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// shareStaged gives what has just been staged to the group that is asked for.
// That may take longer than a call: the record says so until it is complete, and
// the repeated call goes on.
func (n *Node) shareStaged(ctx context.Context, known *volume.NodeVolume) error {
	if !known.Stage.Sharing {
		return nil
	}
	if err := n.share(ctx, known, known.Stage.Path, known.Stage.Capability); err != nil {
		return err
	}
	known.Stage.Sharing = false
	n.cfg.Step.at("shared:record")
	return n.save(known)
}

// shareTarget gives what is to be published at a target to the group that is
// asked for, unless all of it was when it was staged. Who only reads changes
// nothing.
func (n *Node) shareTarget(ctx context.Context, known *volume.NodeVolume, target *volume.Target) error {
	if known.CannotWrite(target) || known.Stage != nil && known.Stage.Capability.Group == target.Capability.Group {
		return nil
	}
	return n.share(ctx, known, target.Source, target.Capability)
}

// share changes the directory of a volume, or the file system of an image where
// it is mounted.
func (n *Node) share(ctx context.Context, known *volume.NodeVolume, mounted string, c volume.Capability) error {
	gid, asked := c.GID()
	if !asked {
		return nil
	}
	n.cfg.Step.at("share")
	if !known.Form().Disk {
		mounted = n.path(known)
	}
	return ownership.Share(ctx, mounted, gid)
}
