package topology

import (
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Policy is what the operator of a provisioner decides once, by flags.
// [DefaultPolicy] returns what external-provisioner does without flags.
type Policy struct {
	// Strict asks for exactly the segment of the selected node, if there is a
	// selected node (--strict-topology).
	Strict bool

	// Immediate asks for the segments of all nodes when neither a node is
	// selected nor allowedTopologies are given (--immediate-topology). When
	// false, such a claim has no requirement at all.
	Immediate bool

	// Spread says which claims without a selected node get preferred
	// topologies.
	Spread Spread

	// FilterAllowed takes allowedTopologies as a filter on the segments of
	// the nodes, instead of as the requisite topologies themselves. So a
	// class that allows zone=a asks a driver with the keys zone and rack for
	// all racks of zone a, with the rack of the selected node first.
	FilterAllowed bool

	// MaxSegments bounds the number of requisite topologies; 0 or less means
	// no bound. Those that would be preferred first stay.
	MaxSegments int
}

// DefaultPolicy returns the policy of external-provisioner without flags:
// Immediate is true, Spread is SpreadAnyName, everything else is off.
func DefaultPolicy() Policy {
	return Policy{Immediate: true, Spread: SpreadAnyName}
}

// Request describes the claim for which a volume is to be made.
type Request struct {
	Policy

	// AllowedTopologies is the field of the StorageClass.
	AllowedTopologies []corev1.TopologySelectorTerm

	// SelectedNode is the node that the scheduler has selected (annotation
	// volume.kubernetes.io/selected-node); empty for immediate binding.
	SelectedNode string

	// ClaimName is the name of the PersistentVolumeClaim, without namespace.
	ClaimName string

	// ClaimUID stands in for ClaimName when that is empty.
	ClaimUID types.UID

	// Accessible is where the source of the volume can be reached, such as the
	// accessible topology of a snapshot (CSI v1.13, message Snapshot); empty
	// if that is everywhere.
	Accessible []Segment
}

// Require returns the accessibility requirement of a CreateVolume call (CSI
// v1.13, message TopologyRequirement), or nil when there is nothing to
// require.
//
// Requisite is, by the first rule that applies:
//
//   - the segment of the selected node, in strict mode;
//   - the flattened AllowedTopologies, unless FilterAllowed is set;
//   - nothing, without a selected node and without Immediate;
//   - the segments of all nodes for which the driver reports the keys of the
//     selected node. Without a selected node, those of each set of keys that the
//     driver reports for any node, as external-provisioner 6.4: the same for
//     every claim, every attempt and any order of events.
//
// Preferred is the same list, begun at another place and going round: at the
// first segment that the selected node lies within, or without a selected
// node at one that the name of the claim decides, see [Spread]. Both lists
// are the same for any order of the input.
//
// The error wraps ErrNodeNotFound, ErrNotRegistered, ErrMissingLabel,
// ErrNotAllowed, ErrUnreachable, ErrNoTopology or ErrInvalid; each says what
// to do.
//
// Accessible narrows Requisite down: of a segment that is larger, the parts
// that are accessible stay. A selected node from where the source cannot be
// reached does not count: the requirement is for a place where it can be, in
// strict mode for the first. The node affinity of the volume then leads the
// scheduler there.
//
// Both lists and the messages in them are shared with the index and with
// other requirements. Callers must not modify them; to change one, use
// proto.Clone first. Appending to a list is safe. A requirement does not
// change when the index does, so it can be kept for later attempts, at the
// cost of two slice headers.
func (x *Index) Require(r Request) (*csi.TopologyRequirement, error) {
	f, err := x.facts(&r)
	if err != nil {
		return nil, err
	}
	if r.strict() {
		return r.requireNode(f)
	}
	requisite, err := r.requisite(f)
	if err == nil && len(r.Accessible) > 0 {
		requisite, err = r.reachable(requisite)
	}
	if requisite == nil || err != nil {
		return nil, err
	}
	return r.order(requisite, f)
}

// strict reports whether only the selected node's segment is asked for.
func (r *Request) strict() bool {
	return r.Strict && r.SelectedNode != ""
}

// aggregates reports whether the segments of all nodes are needed.
func (r *Request) aggregates() bool {
	switch {
	case r.strict():
		return false
	case len(r.AllowedTopologies) > 0:
		return r.FilterAllowed
	}
	return r.SelectedNode != "" || r.Immediate
}

// requireNode returns the requirement of strict mode.
func (r *Request) requireNode(f facts) (*csi.TopologyRequirement, error) {
	if len(r.Accessible) > 0 && !slices.ContainsFunc(r.Accessible, f.selected.Within) {
		return r.requireReachable()
	}
	if !Permitted(r.AllowedTopologies, f.selected) {
		return nil, r.excluded(f.selected)
	}
	only := newRing([]Segment{f.selected}).window(0, 1)
	return &csi.TopologyRequirement{Requisite: only, Preferred: only}, nil
}

// requireReachable returns the requirement of strict mode for a node from which
// the source cannot be reached.
func (r *Request) requireReachable() (*csi.TopologyRequirement, error) {
	reachable := canonical(slices.Clone(r.Accessible))
	at := slices.IndexFunc(reachable, func(s Segment) bool { return Permitted(r.AllowedTopologies, s) })
	if at < 0 {
		return nil, r.unreachable()
	}
	only := newRing(reachable[at:at+1]).window(0, 1)
	return &csi.TopologyRequirement{Requisite: only, Preferred: only}, nil
}

// reachable returns the part of the requisite segments where the source can be
// reached. Nil, which requires nothing, becomes all of where it can be.
func (r *Request) reachable(requisite *ring) (*ring, error) {
	if requisite == nil {
		return newRing(canonical(slices.Clone(r.Accessible))), nil
	}
	var narrowed []Segment
	for _, s := range requisite.segments {
		if slices.ContainsFunc(r.Accessible, s.Within) {
			narrowed = append(narrowed, s)
			continue
		}
		for _, part := range r.Accessible {
			if part.Within(s) {
				narrowed = append(narrowed, part)
			}
		}
	}
	if len(narrowed) == 0 {
		return nil, r.unreachable()
	}
	return newRing(canonical(narrowed)), nil
}

// unreachable says that the source can be reached from nowhere that counts.
func (r *Request) unreachable() error {
	where := "a topology of the driver's nodes"
	if len(r.AllowedTopologies) > 0 {
		where = "allowedTopologies " + describe(r.AllowedTopologies)
	}
	return fmt.Errorf("restrict topology to where the source can be reached, %s: that is not in %s: %w", r.Accessible, where, ErrUnreachable)
}

// requisite returns the requisite segments outside strict mode; nil when
// nothing is required.
func (r *Request) requisite(f facts) (*ring, error) {
	if len(r.AllowedTopologies) == 0 {
		return f.aggregated, nil
	}
	var allowed *ring
	if r.FilterAllowed {
		allowed = f.aggregated.filter(func(s Segment) bool { return permits(r.AllowedTopologies, s) })
	} else {
		segments, err := Flatten(r.AllowedTopologies)
		if err != nil {
			return nil, err
		}
		allowed = newRing(segments)
	}
	if allowed.size() == 0 {
		return nil, fmt.Errorf("restrict topology to allowedTopologies %s: no segment satisfies them, check the keys and values in the StorageClass: %w",
			describe(r.AllowedTopologies), ErrNotAllowed)
	}
	return allowed, nil
}

// order returns the requirement with requisite segments that are not none.
func (r *Request) order(requisite *ring, f facts) (*csi.TopologyRequirement, error) {
	start, err := r.first(requisite, f)
	if err != nil {
		return nil, err
	}
	all := requisite.size()
	requirement := &csi.TopologyRequirement{Requisite: requisite.window(0, all)}
	preferred := requisite.window(start, all)
	if r.MaxSegments > 0 && r.MaxSegments < all {
		preferred = requisite.window(start, r.MaxSegments)
		requirement.Requisite = preferred
	}
	if r.SelectedNode != "" || r.Spread.prefers(r.name()) {
		requirement.Preferred = preferred
	}
	return requirement, nil
}

// first returns the place of the segment that is preferred most.
func (r *Request) first(requisite *ring, f facts) (int, error) {
	if r.SelectedNode == "" {
		return spreadIndex(r.name(), requisite.size()), nil
	}
	lookup := requisite.around
	if r.aggregates() && len(r.Accessible) == 0 {
		lookup = requisite.find // all segments have the node's keys
	}
	place, ok := lookup(f.selected)
	switch {
	case ok:
		return place, nil
	case len(r.Accessible) > 0:
		return 0, nil // the source cannot be reached from the node
	}
	return 0, r.excluded(f.selected)
}

// name returns what claims without a selected node are spread by.
func (r *Request) name() string {
	if r.ClaimName != "" {
		return r.ClaimName
	}
	return string(r.ClaimUID)
}

// excluded says that allowedTopologies exclude the selected node.
func (r *Request) excluded(node Segment) error {
	return fmt.Errorf("restrict topology of node %q, %s, to allowedTopologies %s: the node is not in them, check that the StorageClass uses the driver's topology keys: %w",
		r.SelectedNode, node, describe(r.AllowedTopologies), ErrNotAllowed)
}
