package volume

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Verdict is the answer to "may I do this, and is there anything to do?".
type Verdict int

const (
	// Refuse goes with an error.
	Refuse Verdict = iota
	// Proceed means that the work is still to be done.
	Proceed
	// AlreadyDone means that an earlier call did the same.
	AlreadyDone
)

// PublishRequest asks to attach a volume to a node.
type PublishRequest struct {
	ID         ID
	Node       string
	ReadOnly   bool
	Capability Capability
}

// CheckPublish decides on an attachment (CSI v1.13,
// "ControllerPublishVolume"): the same again is already done, the same node
// with other arguments is an ErrExists, a second node is an ErrInUse unless
// every mode involved is a MULTI_NODE one, and a second writer is one where a mode
// involved is MULTI_NODE_SINGLE_WRITER.
func (v *Volume) CheckPublish(req *PublishRequest) (Verdict, error) {
	if p := v.PublishedOn(req.Node); p != nil {
		if p.ReadOnly == req.ReadOnly && p.Capability.Equal(req.Capability) {
			return AlreadyDone, nil
		}
		return Refuse, fmt.Errorf("volume %q is published to node %q with another capability or readonly flag: %w", v.ID, req.Node, ErrExists)
	}
	if len(v.Published) == 0 {
		return Proceed, nil
	}
	multi := req.Capability.Mode.MultiNode() && !slices.ContainsFunc(v.Published, func(p Publication) bool {
		return !p.Capability.Mode.MultiNode()
	})
	if !multi {
		return Refuse, fmt.Errorf("volume %q is published to node %s and access mode %s allows one node: %w",
			v.ID, strings.Join(v.PublishedNodes(), ", "), req.Capability.Mode, ErrInUse)
	}
	wanted := Publication{Node: req.Node, ReadOnly: req.ReadOnly, Capability: req.Capability}
	for _, p := range v.Published {
		if p.excludes(&wanted) {
			return Refuse, fmt.Errorf("volume %q is published to node %s for writing and access mode %s allows one node to write: %w",
				v.ID, p.Node, MultiNodeSingleWriter, ErrInUse)
		}
	}
	return Proceed, nil
}

// excludes reports whether two nodes would write, and the capability of either
// allows one (CSI v1.13, MULTI_NODE_SINGLE_WRITER).
func (p *Publication) excludes(other *Publication) bool {
	single := p.Capability.Mode == MultiNodeSingleWriter || other.Capability.Mode == MultiNodeSingleWriter
	return single && p.writes() && other.writes()
}

func (p *Publication) writes() bool { return !p.ReadOnly && !p.Capability.Mode.ReadOnly() }

// NodeVolume is what one node knows about a volume: where it is mounted. It
// is written before the mount is made and corrected after it is gone.
type NodeVolume struct {
	ID ID `json:"id"`
	// Stage is the staging mount; nil when not staged.
	Stage *Stage `json:"stage,omitempty"`
	// Targets are the published mounts.
	Targets []Target `json:"targets,omitempty"`
	// Ephemeral is set for an inline volume, which lives and dies with its
	// target.
	Ephemeral *Ephemeral `json:"ephemeral,omitempty"`
	// Home is the directory in which contents of its pool are kept; empty for the
	// state directory.
	Home string `json:"home,omitempty"`
}

// Stage is a staging mount.
type Stage struct {
	Path       string     `json:"path"`
	Capability Capability `json:"capability"`
	// ReadOnly says that the volume was attached to the node read-only, FSType
	// which file system it has of its own. They are no part of the request, but
	// found out by the node.
	ReadOnly bool   `json:"readOnly,omitempty"`
	FSType   string `json:"fsType,omitempty"`
	// Disk identifies the file of a volume that is a disk, also after the file was
	// deleted.
	Disk FileID `json:"disk,omitzero"`
}

// FileID identifies a file under any path, as long as something keeps it from
// being freed: the number of its device, and its own.
type FileID struct {
	Dev uint64 `json:"dev"`
	Ino uint64 `json:"ino"`
}

// CannotWrite reports whether no pod on the node may write, because of the
// attachment or of the access mode.
func (s *Stage) CannotWrite() bool { return s.ReadOnly || s.Capability.Mode.ReadOnly() }

// Target is a published mount.
type Target struct {
	Path       string     `json:"path"`
	Source     string     `json:"source"`
	ReadOnly   bool       `json:"readOnly,omitempty"`
	Capability Capability `json:"capability"`
}

// Ephemeral describes the inline volume behind a target.
type Ephemeral struct {
	Size int64  `json:"size"`
	Pool string `json:"pool,omitempty"`
	// FSType is the type of the file system that the volume has of its own;
	// empty for a directory.
	FSType string `json:"fsType,omitempty"`
	// Attributes are the volume attributes of the pod, without what the
	// kubelet added.
	Attributes map[string]string `json:"attributes,omitempty"`
	// Pod names the pod, for messages: "namespace/name".
	Pod string `json:"pod,omitempty"`
}

// RecordID is the name of the node's record of the volume.
func (n *NodeVolume) RecordID() string { return string(n.ID) }

// CannotWrite reports whether the pod of a target may not write.
func (n *NodeVolume) CannotWrite(t *Target) bool {
	return t.ReadOnly || t.Capability.Mode.ReadOnly() || (n.Stage != nil && n.Stage.CannotWrite())
}

// WritesAlone reports whether the volume is published here for writing, as the
// only node.
func (n *NodeVolume) WritesAlone() bool {
	return slices.ContainsFunc(n.Targets, func(t Target) bool {
		return t.Capability.Mode == MultiNodeSingleWriter && !n.CannotWrite(&t)
	})
}

// TargetAt returns the published mount at a path, or nil.
func (n *NodeVolume) TargetAt(path string) *Target {
	for i := range n.Targets {
		if n.Targets[i].Path == path {
			return &n.Targets[i]
		}
	}
	return nil
}

// Form returns the form of the volume's contents, as this node uses them.
func (n *NodeVolume) Form() Form {
	switch {
	case n.Ephemeral != nil:
		return Form{Disk: n.Ephemeral.FSType != "", FSType: n.Ephemeral.FSType}
	case n.Stage != nil:
		return Form{Disk: n.Stage.Capability.Access == AccessBlock || n.Stage.FSType != "", FSType: n.Stage.FSType}
	}
	return Form{Disk: len(n.Targets) > 0 && n.Targets[0].Capability.Access == AccessBlock}
}

// Device reports whether the volume is used as a device here.
func (n *NodeVolume) Device() bool {
	f := n.Form()
	return f.Disk && f.FSType == ""
}

// Unused reports whether nothing is left to remember.
func (n *NodeVolume) Unused() bool {
	return n.Stage == nil && len(n.Targets) == 0 && n.Ephemeral == nil
}

// Clone returns a copy that shares nothing mutable with n.
func (n *NodeVolume) Clone() *NodeVolume {
	c := *n
	if n.Stage != nil {
		stage := *n.Stage
		c.Stage = &stage
	}
	c.Targets = slices.Clone(n.Targets)
	return &c
}

// CheckStage decides on staging: the same again is already done, the same
// path with another capability is an ErrExists, another path an
// ErrPrecondition, because a volume is staged once per node.
func (n *NodeVolume) CheckStage(want *Stage) (Verdict, error) {
	switch {
	case n.Ephemeral != nil:
		return Refuse, fmt.Errorf("volume %q is an inline volume and is never staged: %w", n.ID, ErrPrecondition)
	case n.Stage == nil:
		return Proceed, nil
	case n.Stage.Path != want.Path:
		return Refuse, fmt.Errorf("volume %q is staged at %q, not at %q: %w", n.ID, n.Stage.Path, want.Path, ErrPrecondition)
	case !n.Stage.Capability.Equal(want.Capability):
		return Refuse, fmt.Errorf("volume %q is staged at %q with another capability: %w", n.ID, want.Path, ErrExists)
	}
	return AlreadyDone, nil
}

// CheckInline reports whether an inline volume is what a repeated request asks
// for. If not, the error is an ErrExists.
func (n *NodeVolume) CheckInline(inline *InlineRequest) error {
	switch {
	case (n.Ephemeral != nil) != (inline != nil):
		return fmt.Errorf("volume %q is in use on this node both as inline and as persistent volume: %w", n.ID, ErrExists)
	case inline != nil && !maps.Equal(n.Ephemeral.Attributes, inline.Attributes):
		return fmt.Errorf("inline volume %q exists with other attributes: %w", n.ID, ErrExists)
	}
	return nil
}

// CheckTarget decides on publishing at a path, as the second table of CSI
// v1.13, "NodePublishVolume", says:
//
//	                        same path                      another path
//	mode                    same arguments  others         any arguments
//	MULTI_NODE_...          already done    ErrExists      proceed
//	SINGLE_NODE_MULTI_...   already done    ErrExists      proceed
//	any other               already done    ErrExists      ErrPrecondition
//
// The volume context does not count as an argument: the kubelet renews the
// tokens in it.
func (n *NodeVolume) CheckTarget(want *Target) (Verdict, error) {
	if have := n.TargetAt(want.Path); have != nil {
		if have.ReadOnly == want.ReadOnly && have.Source == want.Source && have.Capability.Equal(want.Capability) {
			return AlreadyDone, nil
		}
		return Refuse, fmt.Errorf("volume %q is published at %q with another capability, readonly flag or staging path: %w", n.ID, want.Path, ErrExists)
	}
	for _, other := range n.Targets {
		if !other.Capability.Mode.ManyTargets() || !want.Capability.Mode.ManyTargets() {
			return Refuse, fmt.Errorf("volume %q is published at %q and access mode %s allows one path: %w",
				n.ID, other.Path, want.Capability.Mode, ErrPrecondition)
		}
	}
	return Proceed, nil
}

// At reports whether the volume is staged or published at a path.
func (n *NodeVolume) At(path string) bool {
	return n.TargetAt(path) != nil || (n.Stage != nil && n.Stage.Path == path)
}
