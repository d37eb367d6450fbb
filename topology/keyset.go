package topology

import (
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// keySet is one set of topology keys that the driver reports for at least one
// node, with the segments that these keys have on all nodes for which the driver
// reports them, alone or beside others.
type keySet struct {
	keys      []string          // sorted, distinct
	reporters int               // registered nodes that report exactly these keys
	owners    int               // those of them that exist and have all the labels
	groups    map[string]*group // by the text of the segment
	listed    []*group          // those of the latest ring, in order
	latest    *ring
	stale     bool // a group has come or gone since latest was made
}

// group counts the nodes of one segment. segment and message never change, so
// they may be read without the lock of the index.
type group struct {
	set     *keySet
	segment Segment
	message *csi.Topology
	members int  // nodes in the segment for which the driver reports the keys of the set
	owners  int  // those of them for which it reports no others
	listed  bool // is in set.listed
}

func newKeySet(sortedKeys []string) *keySet {
	return &keySet{keys: sortedKeys, groups: map[string]*group{}, latest: &ring{}}
}

// covers reports whether all keys of another set are among those of this one.
func (s *keySet) covers(other *keySet) bool {
	return s == other || !slices.ContainsFunc(other.keys, func(key string) bool {
		_, ok := slices.BinarySearch(s.keys, key)
		return !ok
	})
}

// group returns the group of the segment with the given text, a new one if
// need be. It returns nil when the labels are malformed. The text alone finds
// the right group, as all valid texts of one key set differ.
func (s *keySet) group(text []byte, labels map[string]string) *group {
	if g, ok := s.groups[string(text)]; ok {
		return g
	}
	for _, key := range s.keys {
		if checkPair(key, labels[key]) != nil {
			return nil
		}
	}
	g := &group{set: s, segment: intern(text)}
	s.groups[g.segment.String()] = g
	s.stale = true
	return g
}

// join counts one more node; changed reports whether it is the first owner.
func (g *group) join(own bool) (changed bool) {
	g.members++
	if !own {
		return false
	}
	g.owners++
	g.set.owners++
	return g.owners == 1
}

// leave counts one node less, and drops the group with its last node; changed
// reports whether it was the last owner.
func (g *group) leave(own bool) (changed bool) {
	g.members--
	if g.members == 0 {
		delete(g.set.groups, g.segment.String())
		g.set.stale = true
	}
	if !own {
		return false
	}
	g.owners--
	g.set.owners--
	return g.owners == 0
}

// ring returns the segments of all groups. When groups have come or gone since
// the last call, only the new ones are sorted.
func (s *keySet) ring() *ring {
	if !s.stale {
		return s.latest
	}
	gone := func(g *group) bool { return g.members == 0 }
	s.listed = merge(slices.DeleteFunc(s.listed, gone), s.unlisted())
	s.latest = ringOf(s.listed)
	s.stale = false
	return s.latest
}

// unlisted returns, in order, the groups that have come since the latest ring
// was made, and takes them as listed.
func (s *keySet) unlisted() []*group {
	var added []*group
	for _, g := range s.groups {
		if !g.listed {
			g.listed = true
			g.message = g.segment.Topology()
			added = append(added, g)
		}
	}
	slices.SortFunc(added, compareGroups)
	return added
}

// ringOf returns the ring of groups that are in order.
func ringOf(groups []*group) *ring {
	r := &ring{
		segments: make([]Segment, 0, len(groups)),
		messages: make([]*csi.Topology, 0, 2*len(groups)),
	}
	for _, g := range groups {
		r.segments = append(r.segments, g.segment)
		r.messages = append(r.messages, g.message)
	}
	r.messages = append(r.messages, r.messages...)
	return r
}

// merge returns the groups of two ordered lists in order. It is fast when few
// are added: it looks for their places and copies what lies between.
func merge(groups, added []*group) []*group {
	if len(added) == 0 {
		return groups
	}
	merged := make([]*group, 0, len(groups)+len(added))
	for _, g := range added {
		place, _ := slices.BinarySearchFunc(groups, g, compareGroups)
		merged = append(append(merged, groups[:place]...), g)
		groups = groups[place:]
	}
	return append(merged, groups...)
}

func compareGroups(a, b *group) int {
	return a.segment.Compare(b.segment)
}
