// Package volume is what a volume of the hostpath driver is: the records of volumes and snapshots, the parameters that they are made with, the forms that
// contents can have, and the pools that they are charged to. It is pure: nothing here knows gRPC, files or mounts.
package volume

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/longshore-csi/longshore/driverkit"
)

// TopologyKey is the key of the one topology segment that a node has. Its value is the node id.
const TopologyKey = "topology.hostpath.csi/node"

// MaxIDLength is the greatest length of an id in bytes (CSI v1.13, "Size Limits").
const MaxIDLength = 128

// maxNodeID is the greatest length of a node id in bytes (CSI v1.13, "NodeGetInfo").
const maxNodeID = 256

// CheckID refuses an id that cannot be the name of a file, with an ErrInvalid: 1 to 128 bytes out of letters, digits, dot, dash and underscore, the first
// one neither dot nor dash. So it is never "..", a path or an option of a command.
func CheckID(id string) error { return checkName("id", id, MaxIDLength) }

// CheckNodeID applies the same rule to the id of a node, which has a directory, too; it may have 256 bytes.
func CheckNodeID(node string) error { return checkName("node id", node, maxNodeID) }

func checkName(what, s string, longest int) error {
	switch {
	case s == "":
		return fmt.Errorf("%s: must not be empty: %w", what, driverkit.ErrInvalid)
	case len(s) > longest:
		return fmt.Errorf("%s %.16q...: %d bytes, must be at most %d: %w", what, s, len(s), longest, driverkit.ErrInvalid)
	case s[0] == '.' || s[0] == '-':
		return fmt.Errorf("%s %q: must start with a letter, a digit or an underscore: %w", what, s, driverkit.ErrInvalid)
	}
	if i := strings.IndexFunc(s, notNameRune); i >= 0 {
		return fmt.Errorf("%s %q: must consist of letters, digits, '.', '-' and '_' (byte %d does not): %w", what, s, i, driverkit.ErrInvalid)
	}
	return nil
}

func notNameRune(r rune) bool {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
		return false
	}
	return r != '.' && r != '-' && r != '_'
}

// Volume is the record of a persistent volume.
type Volume struct {
	ID string `json:"id"`
	// Name is the name that the CO gave in CreateVolume; unique.
	Name string `json:"name"`
	// Capacity is the size in bytes. A disk has it; a directory is not kept to it.
	Capacity int64 `json:"capacity"`
	// Pool is charged with Capacity; empty when no pools are configured.
	Pool string `json:"pool,omitempty"`
	// Root is the directory below which the contents are kept; empty for the state directory.
	Root string `json:"home,omitempty"`
	// Parameters are the parameters of CreateVolume.
	Parameters map[string]string `json:"parameters,omitempty"`
	// MutableParameters are those of CreateVolume and of the modifications since.
	MutableParameters map[string]string `json:"mutableParameters,omitempty"`
	// Capabilities are those asked for in CreateVolume.
	Capabilities []Capability `json:"capabilities,omitempty"`
	// FSType is the type of the file system of an image; empty for a directory and for a device.
	FSType string `json:"fsType,omitempty"`
	// Source is the content source; nil when the volume began empty.
	Source *Source `json:"source,omitempty"`
	// Filling says that the contents are not complete. Only drivers up to v0.1 wrote such records.
	Filling bool `json:"filling,omitempty"`
	// Before is the size in bytes before an expansion that is not complete: the contents have at least this. Zero when there is none.
	Before int64 `json:"before,omitempty"`
	// Node is the one node from which the volume is reachable; empty means every node.
	Node string `json:"node,omitempty"`
	// Published are the nodes to which the volume is attached now.
	Published []Publication `json:"published,omitempty"`
}

// Source is the content source of a volume, by id: a snapshot or another volume.
type Source struct {
	Snapshot string `json:"snapshot,omitempty"`
	Volume   string `json:"volume,omitempty"`
}

// String implements fmt.Stringer.
func (s *Source) String() string {
	if s == nil {
		return "nothing"
	}
	return driverkit.Source{Snapshot: s.Snapshot, Volume: s.Volume}.String()
}

// Publication is one attachment of a volume to a node.
type Publication struct {
	Node       string     `json:"node"`
	ReadOnly   bool       `json:"readOnly,omitempty"`
	Capability Capability `json:"capability"`
}

// Capability is one way in which a volume is to be used, as records have it.
type Capability struct {
	// Access is "mount" or "block".
	Access string `json:"access"`
	// Mode is the name of an access mode (CSI v1.13, "VolumeCapability").
	Mode       string   `json:"mode"`
	FSType     string   `json:"fsType,omitempty"`
	MountFlags []string `json:"mountFlags,omitempty"`
}

const (
	accessMount = "mount"
	accessBlock = "block"
)

// CapabilityOf converts a capability of a request.
func CapabilityOf(c driverkit.Capability) Capability {
	access := accessMount
	if c.Block {
		access = accessBlock
	}
	return Capability{Access: access, Mode: c.Mode.String(), FSType: c.FSType, MountFlags: slices.Sorted(slices.Values(c.MountFlags))}
}

// CapabilitiesOf converts the capabilities of a request.
func CapabilitiesOf(list []driverkit.Capability) []Capability {
	converted := make([]Capability, 0, len(list))
	for _, c := range list {
		converted = append(converted, CapabilityOf(c))
	}
	return converted
}

// Equal reports whether two capabilities are the same; the order of mount flags does not count.
func (c Capability) Equal(o Capability) bool {
	return c.Access == o.Access && c.Mode == o.Mode && c.FSType == o.FSType &&
		slices.Equal(slices.Sorted(slices.Values(c.MountFlags)), slices.Sorted(slices.Values(o.MountFlags)))
}

// RecordID implements state.Identified.
func (v Volume) RecordID() string { return v.ID }

// Clone returns a copy that shares nothing with v that changes.
func (v *Volume) Clone() *Volume {
	c := *v
	c.MutableParameters, c.Published = maps.Clone(v.MutableParameters), slices.Clone(v.Published)
	return &c
}

// Form returns the form of the contents.
func (v *Volume) Form() Form {
	block := len(v.Capabilities) > 0 && v.Capabilities[0].Access == accessBlock
	return Form{Disk: block || v.FSType != "", FSType: v.FSType}
}

// PublishedOn returns the attachment to a node, or nil.
func (v *Volume) PublishedOn(node string) *Publication {
	for i := range v.Published {
		if v.Published[i].Node == node {
			return &v.Published[i]
		}
	}
	return nil
}

// PublishedNodes returns the ids of the nodes that the volume is attached to, sorted.
func (v *Volume) PublishedNodes() []string {
	nodes := make([]string, 0, len(v.Published))
	for _, p := range v.Published {
		nodes = append(nodes, p.Node)
	}
	slices.Sort(nodes)
	return nodes
}

// CheckSame refuses a request to create a volume of the same name with other parameters or capabilities, with an ErrExists. driverkit compares size, source
// and topology. Mutable parameters may have been modified since.
func (v *Volume) CheckSame(req *driverkit.CreateRequest) error {
	wanted := CapabilitiesOf(req.Capabilities)
	among := func(list []Capability) func(Capability) bool {
		return func(c Capability) bool { return !slices.ContainsFunc(list, c.Equal) }
	}
	switch {
	case !maps.Equal(v.Parameters, req.Parameters):
		return fmt.Errorf("volume %q has id %q, but its parameters differ: %w", v.Name, v.ID, driverkit.ErrExists)
	case slices.ContainsFunc(wanted, among(v.Capabilities)) || slices.ContainsFunc(v.Capabilities, among(wanted)):
		return fmt.Errorf("volume %q has id %q, but its capabilities differ: %w", v.Name, v.ID, driverkit.ErrExists)
	case !v.isFrom(req.Source):
		return fmt.Errorf("volume %q has id %q, but it was made from %v, requested is %v: %w", v.Name, v.ID, v.Source, req.Source, driverkit.ErrExists)
	}
	return nil
}

// isFrom reports whether a volume was made from a source; nil is none.
func (v *Volume) isFrom(source *driverkit.Source) bool {
	if v.Source == nil || source == nil {
		return v.Source == nil && source == nil
	}
	return v.Source.Snapshot == source.Snapshot && v.Source.Volume == source.Volume
}

// CheckUse refuses a capability with which the volume cannot be used, with an ErrInvalid.
func (v *Volume) CheckUse(c driverkit.Capability) error {
	form := v.Form()
	switch {
	case c.Block != form.Device():
		return fmt.Errorf("volume_capability: volume %q is %v, asked for is %s: %w", v.ID, form, CapabilityOf(c).Access, driverkit.ErrInvalid)
	case c.FSType != "" && c.FSType != v.FSType:
		return fmt.Errorf("volume_capability.mount.fs_type: %q: volume %q is %v: %w", c.FSType, v.ID, form, driverkit.ErrInvalid)
	}
	return form.CheckCapability(c)
}

// CheckAttach refuses an attachment to a node: with an ErrExists one that exists with other arguments, with an ErrInUse a second node unless all modes
// involved are MULTI_NODE, and a second node that writes where one of the modes is MULTI_NODE_SINGLE_WRITER. It reports whether the volume is attached there
// already (CSI v1.13, "ControllerPublishVolume").
func (v *Volume) CheckAttach(req *driverkit.AttachRequest) (attached bool, err error) {
	if p := v.PublishedOn(req.Node); p != nil {
		if p.ReadOnly == req.ReadOnly && p.Capability.Equal(CapabilityOf(req.Capability)) {
			return true, nil
		}
		return false, fmt.Errorf("volume %q is published to node %q with another capability or readonly flag: %w", v.ID, req.Node, driverkit.ErrExists)
	}
	single := driverkit.MultiNodeSingleWriter.String()
	for _, p := range v.Published {
		switch {
		case !req.Capability.MultiNode() || !strings.HasPrefix(p.Capability.Mode, "MULTI_NODE"):
			return false, fmt.Errorf("volume %q is published to node %q, and access mode %s allows one node: %w", v.ID, p.Node, req.Capability.Mode, driverkit.ErrInUse)
		case !req.ReadOnly && !p.ReadOnly && (p.Capability.Mode == single || req.Capability.Mode.String() == single):
			return false, fmt.Errorf("volume %q is published to node %q for writing, and access mode %s allows one node to write: %w", v.ID, p.Node, single, driverkit.ErrInUse)
		}
	}
	return false, nil
}

// CheckReachable refuses a node that cannot reach the volume, with an ErrPrecondition.
func (v *Volume) CheckReachable(node string) error {
	if v.Node == "" || v.Node == node {
		return nil
	}
	return fmt.Errorf("volume %q is reachable from node %q only, not from %q: %w", v.ID, v.Node, node, driverkit.ErrPrecondition)
}

// Snapshot is the record of what a volume contained at one moment. It is a copy of its own: the volume may be deleted.
type Snapshot struct {
	ID string `json:"id"`
	// Name is the name that the CO gave in CreateSnapshot; unique.
	Name string `json:"name"`
	// Source is the volume that it was made of.
	Source string `json:"source"`
	// Size is the capacity in bytes that the volume had, and the least that a volume made of the snapshot has.
	Size int64 `json:"size"`
	// Created is the moment.
	Created time.Time `json:"created"`
	// Filling says that the contents are not complete. Only drivers up to v0.1 wrote such records.
	Filling bool `json:"filling,omitempty"`
	// Pool is charged with Size; empty when no pools are configured.
	Pool string `json:"pool,omitempty"`
	// Root is that of the volume, where blocks can be shared.
	Root string `json:"home,omitempty"`
	// Parameters are the parameters of CreateSnapshot.
	Parameters map[string]string `json:"parameters,omitempty"`
	// Node is the one node on which volumes can be made of it; empty means every node.
	Node string `json:"node,omitempty"`
	// Form is the form of the contents.
	Form Form `json:"form"`
	// Group is the group that it was made with, and is deleted with.
	Group string `json:"group,omitempty"`
}

// RecordID implements state.Identified.
func (s Snapshot) RecordID() string { return s.ID }

// Group is the record of snapshots of one moment.
type Group struct {
	ID string `json:"id"`
	// Name is the name that the CO gave in CreateVolumeGroupSnapshot; unique.
	Name string `json:"name"`
	// Created is the moment.
	Created time.Time `json:"created"`
	// Parameters are the parameters of CreateVolumeGroupSnapshot.
	Parameters map[string]string `json:"parameters,omitempty"`
	// Members are the ids of the snapshots, in the order of the volumes in the request.
	Members []string `json:"members"`
}

// RecordID implements state.Identified.
func (g Group) RecordID() string { return g.ID }

// Segments returns the topology of an object on a node; none where it is reachable from every node.
func Segments(node string) []driverkit.Segments {
	if node == "" {
		return nil
	}
	return []driverkit.Segments{{TopologyKey: node}}
}

// CheckSnapshotParameters refuses parameters that do not exist, with an ErrInvalid. Two have no effect: ignoreFailedRead is that of the Kubernetes
// project's hostpath driver for the program that it copies with; deletionPolicy is in the classes of group snapshots that the storage suite of Kubernetes
// makes, which takes the field of the class for a parameter.
func CheckSnapshotParameters(parameters map[string]string) error {
	const ignoreFailedRead, deletionPolicy = "ignoreFailedRead", "deletionPolicy"
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		if key != ignoreFailedRead && key != deletionPolicy && !reserved(key) {
			return fmt.Errorf("parameter %q: unknown, must be one of [%s]: %w", key, ignoreFailedRead, driverkit.ErrInvalid)
		}
	}
	return nil
}
