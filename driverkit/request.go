package driverkit

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

const (
	// maxName is the greatest length of a name in bytes (CSI v1.13, "Size Limits").
	maxName = 128
	// maxID is that of the id of a new object. CSI allows 128 bytes; Kubernetes has no limit, and drivers in the field have longer ids, such as paths of resources.
	maxID = 2 << 10
)

// required refuses an empty field, and one with banned characters.
func required(field, value string) error {
	if value == "" {
		return fmt.Errorf("%s: is required: %w", field, ErrInvalid)
	}
	return checkCharacters(field, value)
}

// checkCharacters refuses characters that CSI bans in names: control characters other than tab and line ends. The kit takes no ids and paths with them
// either. There is no such rule for keys and values of maps (CSI v1.13, "CreateVolume", "CreateSnapshot", "CreateVolumeGroupSnapshot": name).
func checkCharacters(field, value string) error {
	banned := func(r rune) bool { return unicode.IsControl(r) && r != '\t' && r != '\n' && r != '\r' }
	if i := strings.IndexFunc(value, banned); i >= 0 {
		return fmt.Errorf("%s: %q has a control character at byte %d: %w", field, value, i, ErrInvalid)
	}
	return nil
}

// checkName is required with the limit of names.
func checkName(field, value string) error { return checkLength(field, value, maxName) }

// checkID is required with the limit of the ids of new objects.
func checkID(field, value string) error { return checkLength(field, value, maxID) }

func checkLength(field, value string, most int) error {
	if len(value) > most {
		return fmt.Errorf("%s: %d bytes, must be at most %d: %w", field, len(value), most, ErrInvalid)
	}
	return required(field, value)
}

// checkPath refuses paths that cannot be meant: relative ones, the root, and those that lead into a directory of the driver or contain it.
func (k *kit) checkPath(field, path string) error {
	if err := required(field, path); err != nil {
		return err
	}
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" {
		return fmt.Errorf("%s: %q must be absolute, without \"..\", double or trailing slashes, and not the root: %w", field, path, ErrInvalid)
	}
	for _, own := range append([]string{k.StateDir}, k.OwnDirs...) {
		if within(path, own) || within(own, path) {
			return fmt.Errorf("%s: %q must not contain the driver's directory %q or be inside it: %w", field, path, own, ErrInvalid)
		}
	}
	return nil
}

// checkOptionalPath is checkPath for a path that may be missing.
func (k *kit) checkOptionalPath(field, path string) error {
	if path == "" {
		return nil
	}
	return k.checkPath(field, path)
}

func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// capabilityOf converts one capability and checks it against what the driver serves.
func (k *kit) capabilityOf(c *csi.VolumeCapability) (Capability, error) {
	const field = "volume_capability"
	converted := Capability{Mode: AccessMode(c.GetAccessMode().GetMode())}
	switch access := c.GetAccessType().(type) {
	case *csi.VolumeCapability_Block:
		converted.Block = true
	case *csi.VolumeCapability_Mount:
		converted.FSType = access.Mount.GetFsType()
		converted.MountFlags = access.Mount.GetMountFlags()
		converted.MountGroup = access.Mount.GetVolumeMountGroup()
		if converted.MountGroup != "" && !k.Support.MountGroup {
			return converted, fmt.Errorf("%s.mount.volume_mount_group: %q, but VOLUME_MOUNT_GROUP is not announced: %w", field, converted.MountGroup, ErrInvalid)
		}
	default:
		return converted, fmt.Errorf("%s.access_type: is required, mount or block: %w", field, ErrInvalid)
	}
	if converted.Mode == 0 {
		return converted, fmt.Errorf("%s.access_mode: is required: %w", field, ErrInvalid)
	}
	return converted, k.Support.check(converted)
}

func (k *kit) capabilitiesOf(list []*csi.VolumeCapability) ([]Capability, error) {
	if len(list) == 0 {
		return nil, fmt.Errorf("volume_capabilities: at least one is required: %w", ErrInvalid)
	}
	converted := make([]Capability, 0, len(list))
	for _, c := range list {
		one, err := k.capabilityOf(c)
		if err != nil {
			return nil, err
		}
		converted = append(converted, one)
	}
	return converted, nil
}

// optionalCapabilityOf converts a capability that a CO may leave out.
func (k *kit) optionalCapabilityOf(c *csi.VolumeCapability) (*Capability, error) {
	if c == nil {
		return nil, nil //nolint:nilnil // nil means no capability
	}
	converted, err := k.capabilityOf(c)
	return &converted, err
}

// Support is which capabilities the volumes of a driver have. The zero value is directories on one node at a time.
type Support struct {
	// Block allows raw block volumes, for which Stage returns a Device.
	Block bool
	// NoMount refuses volumes that are directories.
	NoMount bool
	// MultiNode allows the access modes that begin with MULTI_NODE.
	MultiNode bool
	// Clones says that CreateRequest.Source may be a volume.
	Clones bool
	// PublishOnly is for volumes that are not staged once per node, but made available at each path of a workload, such as many network file systems: NodePublishVolume calls Stager.Stage with the
	// workload's path, NodeUnpublishVolume calls Unstage.
	PublishOnly bool
	// MountGroup says that Stage gives the files of a volume to the group Capability.MountGroup: a CO that sees that leaves it to the driver.
	MountGroup bool
	// NoReadOnlyAttach refuses AttachRequest.ReadOnly, for a storage system that cannot keep a node from writing.
	NoReadOnlyAttach bool
	// NoControllerExpansion and NoNodeExpansion do not announce one half of an expansion: of volumes that the node expands alone, and of those that need nothing on nodes, such as network
	// file systems.
	NoControllerExpansion, NoNodeExpansion bool
	// FSTypes are the file systems that a CO may ask for; none means that the node decides, by the programs that it has. A driver without devices
	// names the file systems that it serves, and refuses others.
	FSTypes []string
}

// check refuses a capability that no volume of the driver has, with ErrInvalid (CSI v1.13, "CreateVolume", "unsupported capability").
func (s Support) check(c Capability) error {
	switch {
	case c.Block && !s.Block:
		return fmt.Errorf("volume_capability.access_type: block: the driver serves directories only: %w", ErrInvalid)
	case !c.Block && s.NoMount:
		return fmt.Errorf("volume_capability.access_type: mount: the driver serves block devices only: %w", ErrInvalid)
	case c.MultiNode() && !s.MultiNode:
		return fmt.Errorf("volume_capability.access_mode: %s: the driver serves one node at a time: %w", c.Mode, ErrInvalid)
	case c.Mode < SingleNodeWriter || c.Mode > SingleNodeMultiWriter:
		return fmt.Errorf("volume_capability.access_mode: %s: is not known: %w", c.Mode, ErrInvalid)
	case c.FSType != "" && len(s.FSTypes) > 0 && !slices.Contains(s.FSTypes, c.FSType):
		return fmt.Errorf("volume_capability.mount.fs_type: %q: must be one of %v: %w", c.FSType, s.FSTypes, ErrInvalid)
	}
	return nil
}

// rangeOf converts and checks a range of sizes.
func rangeOf(r *csi.CapacityRange) (Range, error) {
	converted := Range{Required: r.GetRequiredBytes(), Limit: r.GetLimitBytes()}
	return converted, converted.check()
}

// sourceOf converts the source of a volume; nil for an empty volume.
func (k *kit) sourceOf(from *csi.VolumeContentSource) (*Source, error) {
	const field = "volume_content_source"
	switch {
	case from == nil:
		return nil, nil //nolint:nilnil // nil means no source
	case from.GetSnapshot() != nil && k.driver.Snapshotter != nil:
		id := from.GetSnapshot().GetSnapshotId()
		return &Source{Snapshot: id}, required(field+".snapshot.snapshot_id", id)
	case from.GetVolume() != nil && k.Support.Clones:
		id := from.GetVolume().GetVolumeId()
		return &Source{Volume: id}, required(field+".volume.volume_id", id)
	}
	return nil, fmt.Errorf("%s: %T: the driver makes no volumes from it: %w", field, from.GetType(), ErrInvalid)
}
