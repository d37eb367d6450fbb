// Package volume is the domain of the driver: what a volume is, which
// requests fit to it, which errors there are, and the two services
// (controller side and node side) that the layers implement. All of it is
// pure: decisions from values to values.
//
// A driver for real storage keeps this package and replaces what stands
// below the services. Nothing here knows gRPC, files or mounts.
package volume

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// TopologyKey is the key of the one topology segment that a node has. Its
// value is the node id.
const TopologyKey = "topology.hostpath.csi/node"

// MaxIDLength is the greatest length of an id in bytes, as the CSI
// specification limits strings.
const MaxIDLength = 128

// maxNodeID is the greatest length of a node id in bytes (CSI v1.13,
// "NodeGetInfo").
const maxNodeID = 256

// ID names a volume, a snapshot or a group of snapshots. A checked ID is safe as the name of a file.
type ID string

// ParseID checks an id that came from outside: 1 to 128 bytes out of
// letters, digits, dot, dash and underscore, the first one no dot. So it is
// never "..", a path or an option of a command.
func ParseID(s string) (ID, error) {
	if err := checkName("id", s, MaxIDLength); err != nil {
		return "", err
	}
	return ID(s), nil
}

// CheckNodeID applies the same rule to the id of a node, which has a directory
// too; it may have 256 bytes.
func CheckNodeID(node string) error {
	return checkName("node id", node, maxNodeID)
}

// checkName reports whether s may become the name of a file. what names the
// argument in the error, an ErrInvalid.
func checkName(what, s string, longest int) error {
	switch {
	case s == "":
		return fmt.Errorf("%s: must not be empty: %w", what, ErrInvalid)
	case len(s) > longest:
		return fmt.Errorf("%s %.16q...: %d bytes, must be at most %d: %w", what, s, len(s), longest, ErrInvalid)
	case s[0] == '.' || s[0] == '-':
		return fmt.Errorf("%s %q: must start with a letter, a digit or an underscore: %w", what, s, ErrInvalid)
	}
	if i := strings.IndexFunc(s, notNameRune); i >= 0 {
		return fmt.Errorf("%s %q: must consist of letters, digits, '.', '-' and '_' (byte %d does not): %w", what, s, i, ErrInvalid)
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

// Volume is a persistent volume as the controller knows it.
type Volume struct {
	ID ID `json:"id"`
	// Name is the name that the CO gave in CreateVolume; unique.
	Name string `json:"name"`
	// Capacity is the size in bytes. A disk has it, a directory is kept to it
	// where the file system can.
	Capacity int64 `json:"capacity"`
	// Pool is charged with Capacity; empty when no pools are configured.
	Pool string `json:"pool,omitempty"`
	// Home is the directory in which contents of its pool are kept; empty for the
	// state directory.
	Home string `json:"home,omitempty"`
	// Parameters are the parameters of CreateVolume.
	Parameters map[string]string `json:"parameters,omitempty"`
	// MutableParameters are those of CreateVolume and of the modifications
	// since.
	MutableParameters map[string]string `json:"mutableParameters,omitempty"`
	// Capabilities are those asked for in CreateVolume.
	Capabilities []Capability `json:"capabilities,omitempty"`
	// FSType is the type of the file system that the driver makes for the
	// volume; empty for a directory and for a device.
	FSType string `json:"fsType,omitempty"`
	// Source is the content source; nil when the volume began empty.
	Source *Source `json:"source,omitempty"`
	// Filling says that the copy of the source's contents is not complete yet.
	Filling bool `json:"filling,omitempty"`
	// Held is the group snapshot that is being made of the volume and of others;
	// meanwhile no node may begin to write.
	Held ID `json:"held,omitempty"`
	// Node is the one node from which the volume is reachable; empty means
	// every node.
	Node string `json:"node,omitempty"`
	// Published are the nodes to which the volume is attached now.
	Published []Publication `json:"published,omitempty"`
}

// Publication is one attachment of a volume to a node.
type Publication struct {
	Node       string     `json:"node"`
	ReadOnly   bool       `json:"readOnly,omitempty"`
	Capability Capability `json:"capability"`
}

// RecordID is the name of the volume's record.
func (v *Volume) RecordID() string { return string(v.ID) }

// Key returns the lookup keys: id and name.
func (v *Volume) Key() (ID, string) { return v.ID, v.Name }

// KeptIn is where the contents are.
func (v *Volume) KeptIn() string { return v.Home }

// Clone returns a copy that shares nothing with v.
func (v *Volume) Clone() *Volume {
	c := *v
	c.Parameters = maps.Clone(v.Parameters)
	c.MutableParameters = maps.Clone(v.MutableParameters)
	c.Capabilities = slices.Clone(v.Capabilities)
	c.Published = slices.Clone(v.Published)
	if v.Source != nil {
		source := *v.Source
		c.Source = &source
	}
	return &c
}

// Access is how workloads see the volume, which was decided when it was made.
func (v *Volume) Access() Access {
	for _, c := range v.Capabilities {
		return c.Access
	}
	return AccessMount
}

// Form returns the form of the contents.
func (v *Volume) Form() Form {
	return Form{Disk: v.Access() == AccessBlock || v.FSType != "", FSType: v.FSType}
}

// ExpandOnNode reports whether nodes have to do something before users see that
// the volume has become larger.
func (v *Volume) ExpandOnNode() bool { return v.Form().Disk }

// CheckAccess reports whether the volume can be used as the capability says. If
// not, the error is an ErrInvalid.
func (v *Volume) CheckAccess(c Capability) error {
	switch {
	case c.Access != v.Access():
		return fmt.Errorf("access type %q: volume %q was made for access type %q: %w", c.Access, v.ID, v.Access(), ErrInvalid)
	case c.FSType != "" && c.FSType != v.FSType:
		return fmt.Errorf("file system type %q: volume %q is %v: %w", c.FSType, v.ID, v.Form(), ErrInvalid)
	}
	return nil
}

// CheckFilled reports whether the contents are complete. If not, the error is an
// ErrPrecondition.
func (v *Volume) CheckFilled() error { return v.Origin().CheckFilled() }

// CheckWritable reports whether a node may begin to write. If not, the error is
// an ErrBusy.
func (v *Volume) CheckWritable() error {
	if v.Held != "" {
		return fmt.Errorf("volume %q: group of snapshots %q is being made of it: %w", v.ID, v.Held, ErrBusy)
	}
	return nil
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

// PublishedNodes returns the ids of the nodes that the volume is attached
// to, sorted.
func (v *Volume) PublishedNodes() []string {
	nodes := make([]string, 0, len(v.Published))
	for _, p := range v.Published {
		nodes = append(nodes, p.Node)
	}
	slices.Sort(nodes)
	return nodes
}
