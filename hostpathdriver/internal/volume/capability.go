package volume

import (
	"fmt"
	"slices"
	"strings"
)

// Access is how a workload sees a volume.
type Access string

const (
	// AccessMount is a directory.
	AccessMount Access = "mount"
	// AccessBlock is a block device.
	AccessBlock Access = "block"
)

// AccessMode is the name of a CSI access mode, as in the specification.
type AccessMode string

// The access modes of the CSI specification v1.13, "VolumeCapability".
const (
	SingleNodeWriter       AccessMode = "SINGLE_NODE_WRITER"
	SingleNodeReaderOnly   AccessMode = "SINGLE_NODE_READER_ONLY"
	MultiNodeReaderOnly    AccessMode = "MULTI_NODE_READER_ONLY"
	MultiNodeSingleWriter  AccessMode = "MULTI_NODE_SINGLE_WRITER"
	MultiNodeMultiWriter   AccessMode = "MULTI_NODE_MULTI_WRITER"
	SingleNodeSingleWriter AccessMode = "SINGLE_NODE_SINGLE_WRITER"
	SingleNodeMultiWriter  AccessMode = "SINGLE_NODE_MULTI_WRITER"
)

// AccessModes are all modes that the driver serves.
func AccessModes() []AccessMode {
	return []AccessMode{
		SingleNodeWriter, SingleNodeReaderOnly, SingleNodeSingleWriter, SingleNodeMultiWriter,
		MultiNodeReaderOnly, MultiNodeSingleWriter, MultiNodeMultiWriter,
	}
}

// MultiNode reports whether a volume may be attached to several nodes at once.
func (m AccessMode) MultiNode() bool {
	return m == MultiNodeReaderOnly || m == MultiNodeSingleWriter || m == MultiNodeMultiWriter
}

// ManyTargets reports whether a volume may be published at several paths of
// one node at once (CSI v1.13, "NodePublishVolume", second table).
func (m AccessMode) ManyTargets() bool {
	return m.MultiNode() || m == SingleNodeMultiWriter
}

// ReadOnly reports whether no workload may write.
func (m AccessMode) ReadOnly() bool {
	return m == SingleNodeReaderOnly || m == MultiNodeReaderOnly
}

// Capability is one way in which a volume is to be used.
type Capability struct {
	Access     Access     `json:"access"`
	Mode       AccessMode `json:"mode"`
	FSType     string     `json:"fsType,omitempty"`
	MountFlags []string   `json:"mountFlags,omitempty"`
}

// Equal compares two capabilities; the order of mount flags does not count.
func (c Capability) Equal(o Capability) bool {
	return c.Access == o.Access && c.Mode == o.Mode && c.FSType == o.FSType &&
		slices.Equal(slices.Sorted(slices.Values(c.MountFlags)), slices.Sorted(slices.Values(o.MountFlags)))
}

// Support is what a backend can serve; CheckCapability compares with it.
type Support struct {
	// Block allows raw block volumes.
	Block bool
	// FSTypes are the file system types that the backend makes on images, the
	// default first. The empty type, "the driver decides", is always allowed.
	FSTypes []string
	// LeastSize returns the size in bytes of the smallest image of a type; nil is no limit.
	LeastSize func(fsType string) int64
	// MountFlags are the mount flags that a directory can have.
	MountFlags []string
	// CheckMountFlags refuses those that an image cannot have; nil refuses none.
	CheckMountFlags func(flags []string) error
}

// CheckCapability reports whether a backend serves contents of that form as the
// capability says. The error is an ErrInvalid that names the offending part.
func (s Support) CheckCapability(f Form, c Capability) error {
	if c.Access != AccessMount && (c.Access != AccessBlock || !s.Block) {
		return fmt.Errorf("access type %q: this backend serves %s: %w", c.Access, s.accessTypes(), ErrInvalid)
	}
	if !slices.Contains(AccessModes(), c.Mode) {
		return fmt.Errorf("access mode %q: must be one of %v: %w", c.Mode, AccessModes(), ErrInvalid)
	}
	if err := s.checkFSType(c.FSType); err != nil {
		return err
	}
	if f.FSType != "" && c.Mode.MultiNode() && !c.Mode.ReadOnly() {
		return fmt.Errorf("access mode %q: %v can be mounted for writing by one node at a time: %w", c.Mode, f, ErrInvalid)
	}
	return s.checkMountFlags(f, c.MountFlags)
}

func (s Support) checkMountFlags(f Form, flags []string) error {
	if f.Disk && s.CheckMountFlags != nil {
		if err := s.CheckMountFlags(flags); err != nil {
			return fmt.Errorf("%w: %w", err, ErrInvalid)
		}
		return nil
	}
	for _, flag := range flags {
		if !f.Disk && !slices.Contains(s.MountFlags, flag) {
			return fmt.Errorf("mount flag %q: must be one of %s: %w", flag, orNone(s.MountFlags), ErrInvalid)
		}
	}
	return nil
}

// CheckCapabilities checks a list that must not be empty.
func (s Support) CheckCapabilities(f Form, list []Capability) error {
	if len(list) == 0 {
		return fmt.Errorf("volume capabilities: at least one is required: %w", ErrInvalid)
	}
	for _, c := range list {
		if err := s.CheckCapability(f, c); err != nil {
			return err
		}
		if c.Access != list[0].Access {
			return fmt.Errorf("volume capabilities: access types %q and %q: a volume has one of them: %w", list[0].Access, c.Access, ErrInvalid)
		}
	}
	return nil
}

func (s Support) accessTypes() string {
	if s.Block {
		return "mount and block volumes"
	}
	return "mount volumes only"
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}
