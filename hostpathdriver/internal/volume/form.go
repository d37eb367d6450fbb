package volume

import (
	"fmt"
	"slices"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/mount"
)

const (
	// DefaultSize is the size in bytes of a volume without a requested size: 1 GiB.
	DefaultSize int64 = 1 << 30
	// DefaultInlineSize is the size in bytes of an inline volume without the attribute "size": 100 MiB.
	DefaultInlineSize int64 = 100 << 20
	// BlockSize is the unit of a disk in bytes: what every program that bypasses the page cache can live with.
	BlockSize int64 = 4096
)

// FSTypes are the file systems that images can have, the default first.
func FSTypes() []string { return []string{"ext4", "ext3", "xfs"} }

// Form is the form of contents: a directory, or a disk. A disk is a file that nodes attach as a block device; the workload uses the device itself, or a
// file system on it.
type Form struct {
	// Disk is false for a directory.
	Disk bool `json:"disk,omitempty"`
	// FSType is the type of the file system on a disk; empty when the workload uses the device itself.
	FSType string `json:"fsType,omitempty"`
}

// Device reports whether workloads use the block device itself.
func (f Form) Device() bool { return f.Disk && f.FSType == "" }

// String names the form for messages.
func (f Form) String() string {
	switch {
	case !f.Disk:
		return "a directory"
	case f.FSType == "":
		return "a device"
	}
	return "an image with " + f.FSType
}

// ChooseForm selects the form of a new volume: the one that the parameter "backend" and the capabilities ask for, else that of the source, which may be
// nil, else a directory. Contradictions are an ErrInvalid.
func ChooseForm(p Parameters, list []driverkit.Capability, source *Form) (Form, error) {
	block, fsType, err := accessOf(list)
	if err != nil {
		return Form{}, err
	}
	if p.Backend == backendDirectory && (block || fsType != "") {
		return Form{}, fmt.Errorf("parameter %q: %q has neither devices nor file systems of its own: %w", keyBackend, p.Backend, driverkit.ErrInvalid)
	}
	f := Form{Disk: block || fsType != "" || p.Backend == backendImage, FSType: fsType}
	if source != nil {
		if f, err = f.inherit(*source, p.Backend == "", block); err != nil {
			return Form{}, err
		}
	}
	if f.Disk && !block && f.FSType == "" {
		f.FSType = FSTypes()[0]
	}
	return f, f.checkCapabilities(list)
}

// inherit takes over from a source what a request leaves open, and refuses a source that contents of the form cannot be copied from.
func (f Form) inherit(source Form, open, block bool) (Form, error) {
	switch {
	case open && !f.Disk:
		f = source
	case f.Disk && !block && f.FSType == "":
		f.FSType = source.FSType
	}
	return f, f.checkSource(source, block)
}

// accessOf returns the access type and the file system type that all capabilities have in common.
func accessOf(list []driverkit.Capability) (block bool, fsType string, err error) {
	for i, c := range list {
		switch {
		case i > 0 && c.Block != list[0].Block:
			return false, "", fmt.Errorf("volume_capabilities: access types mount and block: a volume has one of them: %w", driverkit.ErrInvalid)
		case fsType != "" && c.FSType != "" && fsType != c.FSType:
			return false, "", fmt.Errorf("volume_capabilities: file system types %q and %q: a volume has one: %w", fsType, c.FSType, driverkit.ErrInvalid)
		case c.FSType != "":
			fsType = c.FSType
		}
		block = c.Block
	}
	return block, fsType, nil
}

// checkSource refuses a source that contents of this form cannot be copied from. A device may be a copy of an image, as backup programs want, but not the
// other way round: nobody knows what is on a device.
func (f Form) checkSource(source Form, block bool) error {
	if f.Disk == source.Disk && f.Device() == block && (block || f.FSType == source.FSType) {
		return nil
	}
	return fmt.Errorf("volume_content_source: is %v, asked for is %v: %w", source, f, driverkit.ErrInvalid)
}

func (f Form) checkCapabilities(list []driverkit.Capability) error {
	for _, c := range list {
		if err := f.CheckCapability(c); err != nil {
			return err
		}
	}
	return nil
}

// CheckCapability refuses a capability that contents of this form do not have, with an ErrInvalid.
func (f Form) CheckCapability(c driverkit.Capability) error {
	if f.FSType != "" && c.MultiNode() && !c.ReadOnly() {
		return fmt.Errorf("volume_capability.access_mode: %s: %v can be mounted for writing by one node at a time: %w", c.Mode, f, driverkit.ErrInvalid)
	}
	if f.Disk {
		if err := filesystem.CheckFlags(c.MountFlags); err != nil {
			return fmt.Errorf("volume_capability.mount.mount_flags: %w: %w", err, driverkit.ErrInvalid)
		}
		return nil
	}
	for _, flag := range c.MountFlags {
		if !slices.Contains(mount.Flags(), flag) {
			return fmt.Errorf("volume_capability.mount.mount_flags: %q: a directory has only %v: %w", flag, mount.Flags(), driverkit.ErrInvalid)
		}
	}
	return nil
}

// Size selects the size in bytes of a new volume: what is required, else the default, in whole blocks for a disk, and at most largest.
// If there is none the error is an ErrOutOfRange.
func (f Form) Size(r driverkit.Range, largest int64) (int64, error) {
	least, step := int64(0), int64(1)
	if f.Disk {
		least, step = filesystem.MinSize(f.FSType), BlockSize
	}
	if r.Required > 0 || r.Limit > 0 && r.Limit < max(least, 1) {
		return r.Choose(least, step, largest)
	}
	size := max(min(DefaultSize, largest), least)
	if r.Limit > 0 {
		size = min(size, r.Limit)
	}
	if size = size / step * step; size == 0 || size > largest { // Nothing smaller is excluded.
		return r.Choose(least, step, largest)
	}
	return size, nil
}
