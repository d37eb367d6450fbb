package topology

import (
	"errors"
	"maps"
	"slices"
	"sort"
	"strings"
)

// naiveCluster is the reference that the index is tested against: the rules of
// seed 001 and of the upstream table, written down as simply as possible, with
// a look at every node for every answer and without a line of the package.
type naiveCluster struct {
	nodes    map[string]map[string]string // labels of the Node objects
	csiNodes map[string]naiveCSINode
}

type naiveCSINode struct {
	registered bool
	keys       []string
}

// place is a segment; pairs are its text and its order.
type place map[string]string

func (p place) text() string {
	var pairs []string
	for key, value := range p {
		pairs = append(pairs, key+"="+value)
	}
	sort.Strings(pairs) // keys of the tests are no prefixes of each other
	return strings.Join(pairs, ",")
}

// before is the upstream order: length, then key and value of each pair.
func (p place) before(q place) bool {
	if len(p) != len(q) {
		return len(p) < len(q)
	}
	return p.text() < q.text()
}

// on returns the place that the keys have on a node for which the driver reports them.
func (c naiveCluster) on(name string, keys []string) (place, bool) {
	labels, exists := c.nodes[name]
	if !exists || !c.csiNodes[name].registered {
		return nil, false
	}
	p := place{}
	for _, key := range keys {
		value, ok := labels[key]
		if !ok || !slices.Contains(c.csiNodes[name].keys, key) {
			return nil, false
		}
		p[key] = value
	}
	return p, true
}

// all returns the distinct places of the keys on all nodes, in order.
func (c naiveCluster) all(keys []string) []place {
	var places []place
	for name := range c.nodes {
		if p, ok := c.on(name, keys); ok {
			places = append(places, p)
		}
	}
	return distinct(places)
}

func distinct(places []place) []place {
	sort.Slice(places, func(i, j int) bool { return places[i].before(places[j]) })
	return slices.CompactFunc(places, func(p, q place) bool { return p.text() == q.text() })
}

// segments returns the places of all nodes by their own keys, in order.
func (c naiveCluster) segments() []string {
	var places []place
	for name, csiNode := range c.csiNodes {
		if p, ok := c.on(name, csiNode.keys); ok {
			places = append(places, p)
		}
	}
	var result []string
	for _, p := range distinct(places) {
		result = append(result, p.text())
	}
	return result
}

// union returns the places of all key sets that the driver reports.
func (c naiveCluster) union() []place {
	var places []place
	for _, csiNode := range c.csiNodes {
		if csiNode.registered && len(csiNode.keys) > 0 {
			places = append(places, c.all(csiNode.keys)...)
		}
	}
	return distinct(places)
}

// selected returns the place of the selected node.
func (c naiveCluster) selected(name string) (place, error) {
	csiNode, hasCSINode := c.csiNodes[name]
	if _, hasNode := c.nodes[name]; !hasNode || !hasCSINode {
		return nil, ErrNodeNotFound
	}
	if !csiNode.registered {
		return nil, ErrNotRegistered
	}
	if len(csiNode.keys) == 0 {
		return nil, ErrNoTopology
	}
	p, ok := c.on(name, csiNode.keys)
	if !ok {
		return nil, ErrMissingLabel
	}
	return p, nil
}

// subset reports whether q has all pairs of p.
func (p place) subset(q place) bool {
	for key, value := range p {
		if other, ok := q[key]; !ok || other != value {
			return false
		}
	}
	return true
}

// flat expands allowedTopologies by recursion.
func flat(r Request) []place {
	var places []place
	for _, term := range r.AllowedTopologies {
		if len(term.MatchLabelExpressions) == 0 {
			continue
		}
		partial := []place{{}}
		for _, e := range term.MatchLabelExpressions {
			var longer []place
			for _, p := range partial {
				for _, value := range e.Values {
					q := maps.Clone(p)
					q[e.Key] = value
					longer = append(longer, q)
				}
			}
			partial = longer
		}
		places = append(places, partial...)
	}
	return distinct(places)
}

// within reports whether one of the places is a subset of q.
func within(places []place, q place) bool {
	return slices.ContainsFunc(places, func(p place) bool { return p.subset(q) })
}

// answer is a requirement as texts; both lists are nil without requirement.
type answer struct {
	Requisite, Preferred []string
}

// errNaive stands for every error of a class that the reference does not tell
// apart; it never equals one of the package.
var errNaive = errors.New("naive reference: unreachable")

// require returns the answer to a request.
func (c naiveCluster) require(r Request) (answer, error) {
	var node place
	if r.SelectedNode != "" {
		var err error
		if node, err = c.selected(r.SelectedNode); err != nil {
			return answer{}, err
		}
	}
	places, err := c.candidates(r, node)
	if err != nil || places == nil {
		return answer{}, err
	}
	if node != nil {
		start := slices.IndexFunc(places, func(p place) bool { return p.subset(node) })
		if start < 0 {
			return answer{}, ErrNotAllowed
		}
		return arrange(r, places, start), nil
	}
	base, ordinal, ok := splitOrdinal(r.ClaimName) // tested by itself
	if !ok {
		base = r.ClaimName
	}
	start := int((fnv1(base) + ordinal) % uint32(len(places)))
	return arrange(r, places, start), nil
}

// arrange writes the answer down.
func arrange(r Request, places []place, start int) answer {
	var a answer
	for i := range places {
		a.Requisite = append(a.Requisite, places[i].text())
		a.Preferred = append(a.Preferred, places[(start+i)%len(places)].text())
	}
	if r.MaxSegments > 0 && r.MaxSegments < len(places) {
		a.Preferred = a.Preferred[:r.MaxSegments]
		a.Requisite = a.Preferred
	}
	_, _, isSet := splitOrdinal(r.ClaimName)
	if r.SelectedNode == "" && (r.Spread == SpreadOff || r.Spread == SpreadStatefulSets && !isSet) {
		a.Preferred = nil
	}
	return a
}

// candidates returns the requisite places in order; nil for no requirement.
func (c naiveCluster) candidates(r Request, node place) ([]place, error) {
	allowed := flat(r)
	hasAllowed := len(r.AllowedTopologies) > 0
	if node != nil && r.Strict {
		if hasAllowed && !within(allowed, node) {
			return nil, ErrNotAllowed
		}
		return []place{node}, nil
	}
	if hasAllowed && !r.FilterAllowed {
		if len(allowed) == 0 {
			return nil, ErrNotAllowed
		}
		return allowed, nil
	}
	if !hasAllowed && node == nil && !r.Immediate {
		return nil, nil
	}
	places := c.all(slices.Sorted(maps.Keys(node)))
	if node == nil {
		places = c.union()
	}
	if len(places) == 0 {
		return nil, ErrNoTopology
	}
	if hasAllowed {
		places = slices.DeleteFunc(places, func(p place) bool { return !within(allowed, p) })
		if len(places) == 0 {
			return nil, ErrNotAllowed
		}
	}
	return places, nil
}

// class returns the sentinel that an error wraps.
func class(err error) error {
	if err == nil {
		return nil
	}
	for _, sentinel := range []error{ErrNodeNotFound, ErrNotRegistered, ErrMissingLabel, ErrNotAllowed, ErrNoTopology, ErrInvalid} {
		if errors.Is(err, sentinel) {
			return sentinel
		}
	}
	return errNaive
}
