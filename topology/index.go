package topology

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	storagev1 "k8s.io/api/storage/v1"
)

// Index knows in which segments the nodes of a cluster are, as one CSI driver
// sees it. It is kept up to date by events and answers without looking at the
// nodes again: an event costs what has changed, an answer costs what it is
// long.
//
// A node counts only when it exists, when the driver is registered on it
// (seed 001: "all cached nodes that contain a node ID from the driver"), and
// when all topology keys in question are labels of it. Events may come in any
// order and repeatedly: the state depends on the last ones only.
//
// All methods may be called by several goroutines at the same time. Make an
// Index with [New].
type Index struct {
	driver string

	mu      sync.Mutex
	nodes   map[string]*node
	sets    map[string]*keySet // by setID; those that a registered node reports
	union   union
	version uint64 // counts changes of the result of Segments
	scratch []byte // for texts that are only looked up
}

// node is what is known of one node.
type node struct {
	labels      map[string]string // of the Node object; never written to
	hasNode     bool              // the Node object exists
	hasCSINode  bool              // the CSINode object exists
	own         *keySet           // the keys that the driver reports; nil: not registered
	memberships []membership      // one for each key set whose keys the driver reports, if they are all labels
}

// membership says that a node counts for a group.
type membership struct {
	group *group
	own   bool // the group's key set is the one that the driver reports for the node
}

// New returns an empty index for the driver of the given name. The name is
// used in error messages only; it is the caller's part to pass the CSINode
// entry of this driver (see [Registration]).
func New(driver string) *Index {
	return &Index{
		driver: driver,
		nodes:  map[string]*node{},
		sets:   map[string]*keySet{},
	}
}

// Registration returns what a CSINode object says of a driver: whether it is
// registered on the node, and with which topology keys. The keys are the
// object's own slice and must not be changed.
func Registration(csiNode *storagev1.CSINode, driver string) (registered bool, topologyKeys []string) {
	for i := range csiNode.Spec.Drivers {
		if csiNode.Spec.Drivers[i].Name == driver {
			return true, csiNode.Spec.Drivers[i].TopologyKeys
		}
	}
	return false, nil
}

// SetNode records that the Node object exists with these labels. The map is
// kept until the next event of this node and must not be changed meanwhile, as
// is the rule for objects of an informer; the index never changes it. The
// result reports whether the result of [Index.Segments] has changed.
func (x *Index) SetNode(name string, labels map[string]string) (changed bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := x.node(name)
	same := n.hasNode && maps.Equal(n.labels, labels)
	n.hasNode, n.labels = true, labels
	if same {
		return false
	}
	return x.refresh(n)
}

// DeleteNode records that the Node object is gone. The result is that of
// [Index.SetNode].
func (x *Index) DeleteNode(name string) (changed bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	n, ok := x.nodes[name]
	if !ok {
		return false
	}
	n.hasNode, n.labels = false, nil
	changed = x.refresh(n)
	x.forget(name, n)
	return changed
}

// SetCSINode records that the CSINode object exists, whether the driver is
// registered in it, and which topology keys it reports; their order and
// repetitions do not matter. The slice is neither kept nor changed. The result
// is that of [Index.SetNode].
func (x *Index) SetCSINode(name string, registered bool, topologyKeys []string) (changed bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := x.node(name)
	n.hasCSINode = true
	if !registered {
		return x.assign(n, nil)
	}
	if n.own != nil && slices.Equal(n.own.keys, topologyKeys) {
		return false
	}
	return x.assign(n, x.acquire(topologyKeys))
}

// DeleteCSINode records that the CSINode object is gone. The result is that of
// [Index.SetNode].
func (x *Index) DeleteCSINode(name string) (changed bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	n, ok := x.nodes[name]
	if !ok {
		return false
	}
	n.hasCSINode = false
	changed = x.assign(n, nil)
	x.forget(name, n)
	return changed
}

// node returns the record of a node, a new one if need be.
func (x *Index) node(name string) *node {
	n, ok := x.nodes[name]
	if !ok {
		n = &node{}
		x.nodes[name] = n
	}
	return n
}

// forget drops the record of a node of which nothing exists any more.
func (x *Index) forget(name string, n *node) {
	if !n.hasNode && !n.hasCSINode {
		delete(x.nodes, name)
	}
}

// assign makes set, which has been acquired, the one that the driver reports
// for the node; nil when the driver is not registered there.
func (x *Index) assign(n *node, set *keySet) (changed bool) {
	old := n.own
	n.own = set
	changed = x.refresh(n)
	if old != nil {
		x.release(old)
	}
	return changed
}

// refresh computes again which groups the node counts for. It joins before it
// leaves, so that a group the node stays in never looks empty.
func (x *Index) refresh(n *node) (changed bool) {
	before, old := x.version, n.memberships
	n.memberships = nil
	if n.hasNode && n.own != nil {
		for _, set := range x.sets {
			x.join(n, set)
		}
	}
	for _, m := range old {
		x.leave(m)
	}
	return x.version != before
}

// join lets a registered node count for the group of set that it is in, if the
// driver reports these keys for it, beside others or not, and it has all the
// labels.
func (x *Index) join(n *node, set *keySet) {
	if !n.own.covers(set) {
		return
	}
	text, ok := appendLabels(x.scratch[:0], n.labels, set.keys)
	x.scratch = text
	if !ok {
		return
	}
	g := set.group(text, n.labels)
	if g == nil {
		return
	}
	m := membership{group: g, own: n.own == set}
	n.memberships = append(n.memberships, m)
	if g.join(m.own) {
		x.version++
	}
}

// leave takes a membership back.
func (x *Index) leave(m membership) {
	if m.group.leave(m.own) {
		x.version++
	}
}

// acquire returns the key set of the given keys for one more node that reports
// it. A set that is new is filled from all nodes, once.
func (x *Index) acquire(topologyKeys []string) *keySet {
	keys := slices.Clone(topologyKeys)
	slices.Sort(keys)
	keys = slices.Compact(keys)
	id := setID(keys)
	set, ok := x.sets[id]
	if !ok {
		set = newKeySet(keys)
		x.sets[id] = set
		for _, n := range x.nodes {
			if n.hasNode && n.own != nil {
				x.join(n, set)
			}
		}
	}
	set.reporters++
	return set
}

// release takes acquire back. A set that no node reports any more is dropped
// with its memberships, so that it costs nothing at later events.
func (x *Index) release(set *keySet) {
	set.reporters--
	if set.reporters > 0 {
		return
	}
	delete(x.sets, setID(set.keys))
	for _, n := range x.nodes {
		n.memberships = slices.DeleteFunc(n.memberships, func(m membership) bool {
			return m.group.set == set
		})
	}
}

// setID returns the key of a key set in the index. A NUL is in no label key.
func setID(sortedKeys []string) string {
	return strings.Join(sortedKeys, "\x00")
}

// appendLabels appends the canonical text of the segment that sortedKeys have
// in labels. ok is false when a key is missing.
func appendLabels(text []byte, labels map[string]string, sortedKeys []string) (_ []byte, ok bool) {
	for _, key := range sortedKeys {
		value, ok := labels[key]
		if !ok {
			return text, false
		}
		text = appendPair(text, key, value)
	}
	return text, true
}

// ownSegment returns the segment of the node by the keys that the driver
// reports for it; ok is false when the node does not count.
func (n *node) ownSegment() (_ Segment, ok bool) {
	for _, m := range n.memberships {
		if m.own {
			return m.group.segment, true
		}
	}
	return Segment{}, false
}

// explain says why the node does not count.
func (x *Index) explain(name string, n *node) error {
	prefix := fmt.Sprintf("look up topology of node %q for driver %q", name, x.driver)
	switch {
	case n == nil:
		return fmt.Errorf("%s: neither its Node nor its CSINode object exists, select another node: %w", prefix, ErrNodeNotFound)
	case !n.hasNode:
		return fmt.Errorf("%s: its Node object does not exist, select another node: %w", prefix, ErrNodeNotFound)
	case !n.hasCSINode:
		return fmt.Errorf("%s: its CSINode object does not exist, select another node: %w", prefix, ErrNodeNotFound)
	case n.own == nil:
		return fmt.Errorf("%s: its CSINode object does not list the driver, check that the driver's node pod runs there: %w", prefix, ErrNotRegistered)
	}
	if missing := missingKeys(n.labels, n.own.keys); len(missing) > 0 {
		return fmt.Errorf("%s: topology key %s is no label of the Node object, wait for the kubelet to set it: %w",
			prefix, quoted(missing), ErrMissingLabel)
	}
	_, err := FromLabels(n.labels, n.own.keys)
	return fmt.Errorf("%s: %w", prefix, err)
}
