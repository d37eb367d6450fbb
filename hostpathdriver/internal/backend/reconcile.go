package backend

import (
	"context"
	"fmt"
	"slices"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// settings are the parts of a controller's record that a node applies to devices
// and file systems.
type settings struct {
	// size in bytes; zero where NodeExpandVolume applies it.
	size int64
	// readAhead in bytes; negative for that of the kernel.
	readAhead int64
}

// settingsOf are those of a controller's record.
func (n *Node) settingsOf(persistent *volume.Volume) settings {
	s := settings{readAhead: -1}
	if bytes, ok := persistent.ReadAhead(); ok {
		s.readAhead = bytes
	}
	if n.cfg.ExpandOnReconcile {
		s.size = persistent.Capacity
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

// Pending returns the staged disks whose controller's record has settings that
// are not applied. It reads each of these records.
func (n *Node) Pending() []volume.ID {
	return slices.DeleteFunc(n.stagedDisks(), func(id volume.ID) bool {
		_, pending, err := n.pending(id)
		return err != nil || !pending
	})
}

func (n *Node) stagedDisks() []volume.ID {
	var ids []volume.ID
	for _, known := range n.All() {
		if known.Stage != nil && known.Form().Disk {
			ids = append(ids, known.ID)
		}
	}
	return ids
}

// pending returns the settings in the controller's record of a volume, and reports
// whether they are not applied.
func (n *Node) pending(id volume.ID) (settings, bool, error) {
	persistent, err := n.lookupPersistent(id)
	if err != nil {
		return settings{}, false, err
	}
	wanted := n.settingsOf(persistent)
	n.mu.RLock()
	defer n.mu.RUnlock()
	return wanted, n.applied[id] != wanted, nil
}

// Reconcile implements volume.NodeService. Directories have nothing to apply.
func (n *Node) Reconcile(ctx context.Context, id volume.ID) error {
	known := n.get(id)
	if known == nil || known.Stage == nil || !known.Form().Disk {
		return nil
	}
	wanted, pending, err := n.pending(id)
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
