package topology

import (
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// ring is a list of distinct segments in canonical order, together with their
// CSI messages. It never changes, so that any number of requirements share it.
type ring struct {
	segments []Segment
	// messages are those of the segments, twice in a row: each rotation of
	// the list is a window of it and need not be copied.
	messages []*csi.Topology
}

// newRing returns the ring of segments that are distinct and in order, with
// new messages.
func newRing(segments []Segment) *ring {
	messages := make([]*csi.Topology, 0, 2*len(segments))
	for _, s := range segments {
		messages = append(messages, s.Topology())
	}
	return &ring{segments: segments, messages: append(messages, messages...)}
}

// size returns the number of segments.
func (r *ring) size() int {
	return len(r.segments)
}

// window returns n messages from the one at start on, going round. An append
// to it never writes into the ring.
func (r *ring) window(start, n int) []*csi.Topology {
	return r.messages[start : start+n : start+n]
}

// find returns the place of a segment.
func (r *ring) find(s Segment) (place int, ok bool) {
	return slices.BinarySearchFunc(r.segments, s, Segment.Compare)
}

// around returns the place of the first segment that s lies within.
func (r *ring) around(s Segment) (place int, ok bool) {
	place = slices.IndexFunc(r.segments, s.Within)
	return place, place >= 0
}

// filter returns the ring of those segments that keep accepts; it shares the
// messages.
func (r *ring) filter(keep func(Segment) bool) *ring {
	var kept ring
	for i, s := range r.segments {
		if keep(s) {
			kept.segments = append(kept.segments, s)
			kept.messages = append(kept.messages, r.messages[i])
		}
	}
	kept.messages = append(kept.messages, kept.messages...)
	return &kept
}
