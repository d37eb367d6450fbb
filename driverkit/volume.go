package driverkit

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/driverkit/mount"
)

// Volume is a volume as the storage system knows it (CSI v1.13, "Volume").
type Volume struct {
	// ID identifies the volume: at most 2 KiB without control characters; CSI allows 128 bytes, Kubernetes more.
	ID string
	// Size is the size in bytes; 0 if it is not known.
	Size int64
	// Topology are the segments from which the volume is reachable; none means that it is reachable from everywhere.
	Topology []Segments
	// Context is passed to Attach and Stage as VolumeContext. It is visible to users and must have no secrets. Get and List may leave it nil.
	Context map[string]string
	// Source is the snapshot or volume that the volume was made from. A storage system that does not remember leaves it nil.
	Source *Source
	// Nodes are the ids of the nodes to which the volume is attached. Get and List must set it where the driver has an Attacher.
	Nodes []string
}

// Source is a snapshot or a volume, by id: one of both is set.
type Source struct {
	// Snapshot is Snapshot.ID of CreateSnapshot.
	Snapshot string
	// Volume is Volume.ID of Create.
	Volume string
}

// String names the source for messages.
func (s Source) String() string {
	if s.Snapshot != "" {
		return fmt.Sprintf("snapshot %q", s.Snapshot)
	}
	return fmt.Sprintf("volume %q", s.Volume)
}

// Range is a range of sizes in bytes (CSI v1.13, "CapacityRange").
type Range struct {
	// Required is the least size; 0 means any.
	Required int64
	// Limit is the greatest size; 0 means no limit.
	Limit int64
}

// Holds reports whether a size is in the range. An unknown size, 0, is in every range.
func (r Range) Holds(size int64) bool {
	return size == 0 || size >= r.Required && (r.Limit == 0 || size <= r.Limit)
}

// Choose returns the least size in the range that is a multiple of step and from least to greatest, all in bytes; greatest 0 means no limit.
// Where there is none the error is ErrOutOfRange.
func (r Range) Choose(least, step, greatest int64) (int64, error) {
	step = max(step, 1)
	wanted := max(r.Required, least, 1)
	if greatest == 0 {
		greatest = math.MaxInt64
	}
	if r.Limit > 0 {
		greatest = min(greatest, r.Limit)
	}
	if wanted > math.MaxInt64-step {
		return 0, fmt.Errorf("capacity range: required_bytes %d are too many: %w", r.Required, ErrOutOfRange)
	}
	size := (wanted + step - 1) / step * step
	if size > greatest {
		return 0, fmt.Errorf("capacity range: required_bytes %s, limit_bytes %s: a volume has from %s to %s, in steps of %s: %w",
			quantity(r.Required), quantity(r.Limit), quantity(least), quantity(greatest), quantity(step), ErrOutOfRange)
	}
	return size, nil
}

// quantity writes a number of bytes as users of Kubernetes do: 16Mi.
func quantity(bytes int64) string {
	unit := 0
	for ; bytes != 0 && bytes%1024 == 0; bytes /= 1024 {
		unit++
	}
	return fmt.Sprint(bytes) + []string{"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"}[unit]
}

// check refuses a range that no size can be in (CSI v1.13, "CapacityRange").
func (r Range) check() error {
	switch {
	case r.Required < 0 || r.Limit < 0:
		return fmt.Errorf("capacity_range: required_bytes %d, limit_bytes %d: must not be negative: %w", r.Required, r.Limit, ErrInvalid)
	case r.Limit > 0 && r.Required > r.Limit:
		return fmt.Errorf("capacity_range: required_bytes %d is above limit_bytes %d: %w", r.Required, r.Limit, ErrInvalid)
	}
	return nil
}

// AccessMode is how many nodes and workloads may use a volume, and how. Its number is that of CSI (CSI v1.13, "VolumeCapability").
type AccessMode int

// The access modes of CSI v1.13.
const (
	SingleNodeWriter       = AccessMode(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)
	SingleNodeReaderOnly   = AccessMode(csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY)
	SingleNodeSingleWriter = AccessMode(csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER)
	SingleNodeMultiWriter  = AccessMode(csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER)
	MultiNodeReaderOnly    = AccessMode(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY)
	MultiNodeSingleWriter  = AccessMode(csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER)
	MultiNodeMultiWriter   = AccessMode(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER)
)

// String is the name that CSI has for the mode.
func (m AccessMode) String() string {
	return csi.VolumeCapability_AccessMode_Mode(m).String() //nolint:gosec // a number of CSI
}

// Capability is one way in which a volume is to be used (CSI v1.13, "VolumeCapability").
type Capability struct {
	// Block says that workloads see a raw block device, and no directory.
	Block bool `json:"block,omitempty"`
	// FSType is the requested file system; empty leaves the choice to the driver.
	FSType string `json:"fsType,omitempty"`
	// MountFlags are mount options, such as "noatime".
	MountFlags []string `json:"mountFlags,omitempty"`
	// MountGroup is the number of the group that the files are to be given to, where Support.MountGroup is set; empty leaves them as they are.
	MountGroup string `json:"mountGroup,omitempty"`
	// Mode is the access mode.
	Mode AccessMode `json:"mode"`
}

// ReadOnly reports whether no workload may write.
func (c Capability) ReadOnly() bool {
	return c.Mode == SingleNodeReaderOnly || c.Mode == MultiNodeReaderOnly
}

// MultiNode reports whether several nodes may use the volume at once.
func (c Capability) MultiNode() bool {
	return c.Mode == MultiNodeReaderOnly || c.Mode == MultiNodeSingleWriter || c.Mode == MultiNodeMultiWriter
}

// manyTargets reports whether the volume may be published at several paths of a node (CSI v1.13, "NodePublishVolume", second table).
func (c Capability) manyTargets() bool { return c.MultiNode() || c.Mode == SingleNodeMultiWriter }

// equal compares two capabilities; the order of mount flags does not count.
func (c Capability) equal(o Capability) bool {
	return c.Block == o.Block && c.FSType == o.FSType && c.Mode == o.Mode && c.MountGroup == o.MountGroup &&
		slices.Equal(c.noted().MountFlags, o.noted().MountFlags)
}

// hashed begins what a journal has in place of mount flags.
const hashed = "sha256:"

// noted returns what a journal has of a capability. Mount flags may be secrets (CSI v1.13, "VolumeCapability"): of those that are not known to be none there is a hash, to compare them with
// those of a repeated call.
func (c Capability) noted() Capability {
	known := mount.Flags()
	var flags, others []string
	for _, flag := range slices.Compact(slices.Sorted(slices.Values(c.MountFlags))) {
		if strings.HasPrefix(flag, hashed) || slices.Contains(known, flag) {
			flags = append(flags, flag)
		} else {
			others = append(others, flag)
		}
	}
	if len(others) > 0 {
		sum := sha256.Sum256([]byte(strings.Join(others, ",")))
		flags = append(flags, hashed+hex.EncodeToString(sum[:]))
	}
	c.MountFlags = flags
	return c
}

// Segments is a topology segment, as keys and values such as "topology.example.com/zone": "a" (CSI v1.13, "Topology").
type Segments map[string]string

// Within reports whether s has every key of the other segments with the same value: a node in s reaches what is reachable from other.
func (s Segments) Within(other Segments) bool {
	for key, value := range other {
		if own, ok := s[key]; !ok || own != value {
			return false
		}
	}
	return true
}

// meets reports whether a wanted segment and one of the storage system are one inside the other: the wanted one is that of a node, with all keys, or a
// part of the keys, such as the zone alone, that the allowedTopologies of a StorageClass have.
func (s Segments) meets(offer Segments) bool { return s.Within(offer) || offer.Within(s) }

// String formats the segments for messages.
func (s Segments) String() string {
	pairs := make([]string, 0, len(s))
	for key, value := range s {
		pairs = append(pairs, key+"="+value)
	}
	slices.Sort(pairs)
	return strings.Join(pairs, ",")
}

// TopologyRequirement says from where a new volume is to be reachable (CSI v1.13, "TopologyRequirement").
type TopologyRequirement struct {
	// Requisite are segments of which the volume must be reachable from at least one; none allows everything.
	Requisite []Segments
	// Preferred are segments from which the volume should be reachable, the most wanted first.
	Preferred []Segments
}

// Choose returns the first preferred of the segments that a storage system offers, by any number of keys, else the first requisite one. Where the
// requirement excludes all of them the error is ErrExhausted. Without a requirement it is the first offer.
func (t TopologyRequirement) Choose(offers []Segments) (Segments, error) {
	allowed := slices.DeleteFunc(slices.Clone(offers), func(offer Segments) bool { return !t.Allows([]Segments{offer}) })
	if len(allowed) == 0 {
		return nil, fmt.Errorf("accessibility_requirements: requisite is %v, and the driver serves %v: %w", t.Requisite, offers, ErrExhausted)
	}
	for _, wanted := range t.Preferred {
		for _, offer := range allowed {
			if wanted.meets(offer) {
				return offer, nil
			}
		}
	}
	return allowed[0], nil
}

// Allows reports whether a volume that is reachable from these segments satisfies the requirement. No segments mean everywhere.
func (t TopologyRequirement) Allows(reachable []Segments) bool {
	if len(t.Requisite) == 0 || len(reachable) == 0 {
		return true
	}
	return slices.ContainsFunc(t.Requisite, func(wanted Segments) bool {
		return slices.ContainsFunc(reachable, wanted.meets)
	})
}

// check compares a volume that Create returned with the request (CSI v1.13, "CreateVolume", ALREADY_EXISTS). An error of the volume itself is INTERNAL.
func (r *CreateRequest) check(v *Volume) error {
	if v == nil {
		return fmt.Errorf("the storage system created no volume for name %q", r.Name)
	}
	if err := checkID("volume_id", v.ID); err != nil {
		return fmt.Errorf("the storage system made a volume for name %q whose id CSI does not allow: %v", r.Name, err) //nolint:errorlint // not the caller's fault
	}
	exists := func(format string, args ...any) error {
		return fmt.Errorf("volume %q exists as %q: %w: "+format, slices.Concat([]any{r.Name, v.ID, ErrExists}, args)...)
	}
	switch {
	case !r.Size.Holds(v.Size):
		return exists("it has %d bytes, requested are required_bytes %d and limit_bytes %d", v.Size, r.Size.Required, r.Size.Limit)
	case !r.Topology.Allows(v.Topology):
		return exists("it is reachable from %v, requested is one of %v", v.Topology, r.Topology.Requisite)
	case v.Source != nil && r.Source == nil:
		return exists("it was made from %v, requested is an empty one", v.Source)
	case v.Source != nil && *v.Source != *r.Source:
		return exists("it was made from %v, requested is %v", v.Source, r.Source)
	}
	return nil
}

// message converts the volume; source is that of the request, for storage systems that do not remember.
func (v *Volume) message(source *Source) *csi.Volume {
	answer := &csi.Volume{VolumeId: v.ID, CapacityBytes: v.Size, VolumeContext: v.Context, AccessibleTopology: topologiesOf(v.Topology)}
	if source = cmp.Or(v.Source, source); source != nil {
		answer.ContentSource = source.message()
	}
	return answer
}

func (s *Source) message() *csi.VolumeContentSource {
	if s.Snapshot != "" {
		return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: s.Snapshot}}}
	}
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: s.Volume}}}
}

func topologyOf(r *csi.TopologyRequirement) TopologyRequirement {
	return TopologyRequirement{Requisite: segmentsOf(r.GetRequisite()), Preferred: segmentsOf(r.GetPreferred())}
}

func topologiesOf(list []Segments) []*csi.Topology {
	converted := make([]*csi.Topology, 0, len(list))
	for _, s := range list {
		converted = append(converted, &csi.Topology{Segments: s})
	}
	return converted
}

func segmentsOf(list []*csi.Topology) []Segments {
	converted := make([]Segments, 0, len(list))
	for _, t := range list {
		converted = append(converted, t.GetSegments())
	}
	return converted
}
