package volume

import (
	"fmt"
	"slices"
	"strings"
)

// Segment is one topology segment: keys and values.
type Segment map[string]string

// Requirements say where a new volume must (Requisite) and should
// (Preferred) be reachable, as CreateVolume's accessibility_requirements.
type Requirements struct {
	Requisite []Segment
	Preferred []Segment
}

// Placement selects the node of a new volume.
type Placement struct {
	// Enabled is false when volumes have no topology at all.
	Enabled bool
	// Own is the only node that volumes can live on. Empty: this process
	// serves the directories of every node.
	Own string
}

// ChooseNode returns the node on which to create a volume; empty means that the
// volume is reachable from every node. It is an ErrExhausted when the
// requirements rule out every node that can be served, and an ErrInvalid when
// they name a node that cannot be.
func (p Placement) ChooseNode(r Requirements) (string, error) {
	if !p.Enabled {
		return "", nil
	}
	if p.Own != "" {
		return p.chooseOwnNode(r)
	}
	for _, segment := range slices.Concat(r.Preferred, r.Requisite) {
		if node := segment[TopologyKey]; node != "" {
			if err := CheckNodeID(node); err != nil {
				return "", fmt.Errorf("place volume: %w", err)
			}
			return node, nil
		}
	}
	return "", nil
}

// PoolOf returns the pool of this process that a volume or snapshot is charged to;
// empty for one on another node, which is charged to the pools of the process that
// serves that node.
func (p Placement) PoolOf(node, pool string) string {
	if p.Own != "" && node != "" && node != p.Own {
		return ""
	}
	return pool
}

func (p Placement) chooseOwnNode(r Requirements) (string, error) {
	if r.Allow(p.Own) {
		return p.Own, nil
	}
	return "", fmt.Errorf("place volume: only %s=%s can be served, required is one of [%s]: %w",
		TopologyKey, p.Own, strings.Join(r.nodes(), " "), ErrExhausted)
}

// Allow reports whether a volume on the node (empty: on every node) satisfies
// the requirements. No requirements allow everything.
func (r Requirements) Allow(node string) bool {
	required := r.required()
	return len(required) == 0 || node == "" || slices.ContainsFunc(required, func(s Segment) bool {
		return s[TopologyKey] == node
	})
}

// required is the binding list: preferred segments bind only when there are
// no requisite ones (CSI v1.13, "TopologyRequirement").
func (r Requirements) required() []Segment {
	if len(r.Requisite) > 0 {
		return r.Requisite
	}
	return r.Preferred
}

func (r Requirements) nodes() []string {
	var nodes []string
	for _, segment := range r.required() {
		if node := segment[TopologyKey]; node != "" {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// CheckReachable reports whether a node can reach the volume. The error is an
// ErrPrecondition.
func (v *Volume) CheckReachable(node string) error {
	if v.Node == "" || v.Node == node {
		return nil
	}
	return fmt.Errorf("volume %q is reachable from node %q only, not from %q: %w", v.ID, v.Node, node, ErrPrecondition)
}
