package backend

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// settings are what a node applies to the devices and the file system of a volume.
type settings struct {
	// size of the file in bytes, which follows the record; zero where NodeExpandVolume
	// applies it.
	size int64
	// readAhead in bytes; negative for that of the kernel.
	readAhead int64
}

// settingsOf are those that a staged volume must have.
func (n *Node) settingsOf(known *volume.NodeVolume, persistent *volume.Volume) settings {
	s := settings{readAhead: -1}
	if bytes, ok := persistent.ReadAhead(); ok {
		s.readAhead = bytes
	}
	if n.cfg.ExpandOnReconcile {
		if info, err := os.Stat(n.disk(known)); err == nil {
			s.size = info.Size()
		}
	}
	return s
}

// setApplied remembers settings that the device and the file system of a volume
// have.
func (n *Node) setApplied(id volume.ID, s settings) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.applied[id] = s
}

// Pending returns the staged disks that have settings which are not applied. It reads
// the controller's record of each staged disk.
func (n *Node) Pending() []volume.ID {
	var ids []volume.ID
	for _, known := range n.stagedDisks() {
		if _, pending, err := n.pending(known); err == nil && pending {
			ids = append(ids, known.ID)
		}
	}
	return ids
}

func (n *Node) stagedDisks() []*volume.NodeVolume {
	return slices.DeleteFunc(n.All(), func(known *volume.NodeVolume) bool { return known.Stage == nil || !known.Form().Disk })
}

// pending returns the settings of a staged disk, and reports whether they are not
// applied.
func (n *Node) pending(known *volume.NodeVolume) (settings, bool, error) {
	persistent, err := n.lookupPersistent(known.ID)
	if err != nil {
		return settings{}, false, err
	}
	wanted := n.settingsOf(known, persistent)
	n.mu.RLock()
	defer n.mu.RUnlock()
	return wanted, n.applied[known.ID] != wanted, nil
}

// Reconcile implements volume.NodeService. Directories have nothing to apply.
func (n *Node) Reconcile(ctx context.Context, id volume.ID) error {
	known := n.get(id)
	if known == nil || known.Stage == nil || !known.Form().Disk {
		return nil
	}
	wanted, pending, err := n.pending(known)
	if err != nil || !pending {
		return err
	}
	if wanted.size > 0 {
		if err := n.grow(ctx, known); err != nil {
			return fmt.Errorf("expand volume %q on node %q: %w", id, n.cfg.NodeID, err)
		}
	}
	if err := n.setReadAhead(ctx, known, wanted); err != nil {
		return err
	}
	n.setApplied(id, wanted)
	return nil
}

// setReadAhead applies a setting to the devices of a disk.
func (n *Node) setReadAhead(ctx context.Context, known *volume.NodeVolume, s settings) error {
	if s.readAhead < 0 || !known.Form().Disk {
		return nil
	}
	return n.cfg.Devices.SetReadAhead(ctx, n.disk(known), s.readAhead)
}

// grow resizes device and file system to the size of the contents.
func (n *Node) grow(ctx context.Context, known *volume.NodeVolume) error {
	if err := n.presenter(known).grow(ctx, known); err != nil {
		return err
	}
	n.meter.forget(known.ID)
	return nil
}
