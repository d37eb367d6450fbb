package topology

import (
	"fmt"
	"maps"
	"slices"
)

// NodeSegment returns the segment of a node by the topology keys that the
// driver reports for it. The error wraps ErrNodeNotFound, ErrNotRegistered,
// ErrMissingLabel or ErrInvalid. A driver that reports no keys gives the
// empty segment and no error.
func (x *Index) NodeSegment(name string) (Segment, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.nodeSegment(name)
}

func (x *Index) nodeSegment(name string) (Segment, error) {
	n := x.nodes[name]
	if n != nil {
		if segment, ok := n.ownSegment(); ok {
			return segment, nil
		}
	}
	return Segment{}, x.explain(name, n)
}

// Segments returns the distinct segments of all nodes, each node by the
// topology keys that the driver reports for it, in canonical order. Nodes for
// which it reports no keys are in the empty segment.
func (x *Index) Segments() []Segment {
	x.mu.Lock()
	defer x.mu.Unlock()
	var segments []Segment
	for _, set := range x.sets {
		for _, g := range set.groups {
			if g.owners > 0 {
				segments = append(segments, g.segment)
			}
		}
	}
	return canonical(segments)
}

// KeySetState describes one set of topology keys for which an [Index] counts
// nodes.
type KeySetState struct {
	// Keys are the topology keys, sorted.
	Keys []string `json:"keys"`
	// Nodes is the number of nodes that have a label for each key and for
	// which the driver reports exactly these keys.
	Nodes int `json:"nodes"`
	// Segments counts, by the text of the segment, the nodes that are in it,
	// also those for which the driver reports further keys.
	Segments map[string]int `json:"segments"`
}

// State describes the index for people who debug it, in a fixed order. It
// costs what it is long.
func (x *Index) State() []KeySetState {
	x.mu.Lock()
	defer x.mu.Unlock()
	states := make([]KeySetState, 0, len(x.sets))
	for _, set := range x.sets {
		segments := make(map[string]int, len(set.groups))
		for text, g := range set.groups {
			segments[text] = g.members
		}
		states = append(states, KeySetState{
			Keys:     append([]string{}, set.keys...), // never null in JSON
			Nodes:    set.owners,
			Segments: segments,
		})
	}
	slices.SortFunc(states, func(a, b KeySetState) int { return slices.Compare(a.Keys, b.Keys) })
	return states
}

// facts is what a requirement is decided from: a consistent excerpt of the
// index, which does not change any more.
type facts struct {
	selected   Segment // of the selected node, empty without one
	aggregated *ring   // nil unless the request asks for it
}

// facts looks up what the request needs.
func (x *Index) facts(r *Request) (facts, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if r.SelectedNode == "" {
		if !r.aggregates() {
			return facts{}, nil
		}
		all := x.aggregated()
		if all == nil {
			return facts{}, x.explainEmpty()
		}
		return facts{aggregated: all}, nil
	}
	segment, err := x.nodeSegment(r.SelectedNode)
	if err != nil {
		return facts{}, err
	}
	if segment.IsEmpty() {
		return facts{}, fmt.Errorf("look up topology of node %q for driver %q: the driver is registered without topology keys, its NodeGetInfo must return accessible_topology: %w",
			r.SelectedNode, x.driver, ErrNoTopology)
	}
	f := facts{selected: segment}
	if r.aggregates() {
		f.aggregated = x.nodes[r.SelectedNode].own.ring()
	}
	return f, nil
}

// union is the ring of the segments of all key sets, made of their rings.
type union struct {
	parts []*ring
	ring  *ring
}

// aggregated returns the segments of all key sets, each on the nodes for which
// the driver reports its keys; nil when there is none. It depends on the state of
// the cluster only, not on the order of events.
func (x *Index) aggregated() *ring {
	var parts []*ring
	for _, id := range slices.Sorted(maps.Keys(x.sets)) {
		if set := x.sets[id]; len(set.keys) > 0 && set.ring().size() > 0 {
			parts = append(parts, set.ring())
		}
	}
	switch {
	case len(parts) == 0:
		return nil
	case len(parts) == 1:
		return parts[0]
	case !slices.Equal(parts, x.union.parts):
		var segments []Segment
		for _, part := range parts {
			segments = append(segments, part.segments...)
		}
		x.union = union{parts: parts, ring: newRing(canonical(segments))}
	}
	return x.union.ring
}

// explainEmpty says why no key set leads.
func (x *Index) explainEmpty() error {
	prefix := fmt.Sprintf("aggregate topology of the nodes of driver %q", x.driver)
	keys := 0
	for _, set := range x.sets {
		keys += len(set.keys)
	}
	switch {
	case len(x.sets) == 0:
		return fmt.Errorf("%s: the driver is registered on no node, check that its node pods run: %w", prefix, ErrNoTopology)
	case keys == 0:
		return fmt.Errorf("%s: the driver is registered without topology keys, its NodeGetInfo must return accessible_topology: %w", prefix, ErrNoTopology)
	}
	return fmt.Errorf("%s: no registered node has a Node object with labels for all topology keys that the driver reports for it, wait for the kubelets to set them: %w", prefix, ErrNoTopology)
}
