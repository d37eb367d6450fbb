package backend

import (
	"context"
	"fmt"
	"os"
	"time"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/driverkit"
)

// settings are what a node applies to the devices and the file system of a volume.
type settings struct {
	// size of the file in bytes; zero where NodeExpandVolume applies it.
	size int64
	// readAhead in bytes; negative for that of the kernel.
	readAhead int64
}

// apply sets the read-ahead of the devices of a volume.
func (n *Node) apply(ctx context.Context, u *use, s settings) error {
	if s.readAhead >= 0 {
		if err := n.cfg.Devices.SetReadAhead(ctx, n.disk(u), s.readAhead); err != nil {
			return err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.applied[u.ID] = s
	return nil
}

func (n *Node) forgetSettings(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.applied, id)
}

// Reconcile applies to a staged volume what has changed in the controller's record. It does nothing for a volume that is not staged, and nothing twice.
func (n *Node) Reconcile(ctx context.Context, id string) error {
	unlock, err := n.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	u := n.get(id)
	if u == nil || u.Inline != nil {
		return nil
	}
	return n.reconcile(ctx, u)
}

func (n *Node) reconcile(ctx context.Context, u *use) error {
	wanted, pending, err := n.pending(u)
	if err != nil || !pending {
		return err
	}
	if wanted.size > 0 {
		if err := n.grow(ctx, u); err != nil {
			return fmt.Errorf("expand volume %q on node %q: %w", u.ID, n.cfg.NodeID, err)
		}
	}
	return n.apply(ctx, u, wanted)
}

// pending returns the settings of a staged disk, and reports whether they are not applied.
func (n *Node) pending(u *use) (settings, bool, error) {
	if !u.Form.Disk {
		return settings{}, false, nil
	}
	found, err := n.cfg.View(u.ID)
	if err != nil {
		return settings{}, false, err
	}
	wanted := settings{readAhead: -1}
	if bytes, ok := found.ReadAhead(); ok {
		wanted.readAhead = bytes
	}
	if n.cfg.ExpandUnasked {
		if info, err := os.Stat(n.disk(u)); err == nil { // The record precedes the file.
			wanted.size = info.Size()
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	applied, known := n.applied[u.ID]
	return wanted, !known || applied != wanted, nil
}

// grow resizes the devices of a volume, and its file system where it is mounted.
func (n *Node) grow(ctx context.Context, u *use) error {
	file := n.disk(u)
	if err := n.cfg.Devices.Resize(ctx, file); err != nil {
		return err
	}
	n.meter.forget(u.ID)
	if u.Form.FSType == "" || u.ReadOnly {
		return nil // The next mount for writing makes the file system larger.
	}
	device, err := n.cfg.Devices.Device(ctx, file, false)
	if err != nil || device == "" {
		return err
	}
	mounted, readOnly, err := n.cfg.Filesystems.IsMountOf(ctx, device, u.Path)
	if err != nil || !mounted || readOnly {
		return err
	}
	return n.cfg.Filesystems.Grow(ctx, device, u.Path)
}

// retryAfter is the pause after a change that could not be applied.
const retryAfter = time.Minute

// Watch applies to staged volumes what controllers in other processes change, until ctx ends. Each period it reads the record of each staged disk.
func (n *Node) Watch(ctx context.Context, period time.Duration) {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	retry := map[string]time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			for _, id := range n.pendingIDs() {
				if now.Before(retry[id]) {
					continue
				}
				delete(retry, id)
				timed, cancel := withUndoTimeout(ctx)
				if err := n.Reconcile(timed, id); err != nil {
					klog.FromContext(ctx).Error(err, "Could not apply changes to a staged volume; the driver tries again", logging.KeyVolumeID, id)
					retry[id] = now.Add(retryAfter)
				}
				cancel()
			}
		}
	}
}

// pendingIDs are the staged disks with settings that are not applied.
func (n *Node) pendingIDs() []string {
	n.mu.Lock()
	staged := make([]string, 0, len(n.applied))
	for id := range n.applied {
		staged = append(staged, id)
	}
	n.mu.Unlock()
	var ids []string
	for _, id := range staged {
		if u := n.get(id); u != nil && u.Inline == nil {
			if _, pending, err := n.pending(u); err == nil && pending {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// ExpandOnNode has the devices of a volume take its new size; driverkit grows the file system.
func (n *Node) ExpandOnNode(ctx context.Context, req *driverkit.NodeExpandRequest) (*driverkit.NodeExpanded, error) {
	u := n.get(req.ID)
	switch {
	case u == nil:
		return nil, fmt.Errorf("volume %q: is not staged on node %q: %w", req.ID, n.cfg.NodeID, driverkit.ErrNotFound)
	case u.Inline != nil:
		return nil, fmt.Errorf("volume %q is an inline volume, which keeps its size: %w", req.ID, driverkit.ErrInvalid)
	}
	if err := n.expandAlone(ctx, req); err != nil {
		return nil, err
	}
	unlock, err := n.locks.Lock(ctx, req.ID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	n.meter.forget(req.ID)
	if u.Form.Disk {
		err = n.cfg.Devices.Resize(ctx, n.disk(u))
	}
	return &driverkit.NodeExpanded{}, err
}

// expandAlone checks the size of a volume that is expanded on this node, and has the controller's part done where the CO asks the node alone.
func (n *Node) expandAlone(ctx context.Context, req *driverkit.NodeExpandRequest) error {
	found, err := n.cfg.View(req.ID)
	if err != nil {
		return err
	}
	if largest := n.cfg.MaxExpandSize; largest > 0 && max(found.Capacity, req.Size.Required) > largest {
		return fmt.Errorf("expand volume %q on node %q: %d bytes exceed the largest volume %d of this node: %w",
			req.ID, n.cfg.NodeID, max(found.Capacity, req.Size.Required), largest, driverkit.ErrOutOfRange)
	}
	if n.cfg.Expand != nil && found.Capacity < req.Size.Required {
		if err := n.cfg.Expand(ctx, &driverkit.ExpandRequest{ID: req.ID, Size: req.Size}); err != nil {
			return err
		}
		if found, err = n.cfg.View(req.ID); err != nil {
			return err
		}
	}
	if !req.Size.Holds(found.Capacity) {
		return fmt.Errorf("capacity_range: volume %q has %d bytes, asked for is at least %d and at most %d (0 is no limit): %w",
			req.ID, found.Capacity, req.Size.Required, req.Size.Limit, driverkit.ErrOutOfRange)
	}
	return nil
}
