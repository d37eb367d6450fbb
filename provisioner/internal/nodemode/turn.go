package nodemode

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/reconcile"
)

// soon is the shortest pause: a queue takes none for "never".
const soon = time.Millisecond

// turn is the place of this instance in the competition for one claim. The zero value has not begun.
type turn struct {
	// holder is the node that has taken the claim, empty while none has.
	holder string
	// gone says that holder does not exist, and the claim is to be had again.
	gone bool
	// tries counts the pauses that have ended in vain.
	tries int
	// due is when the present pause ends.
	due time.Time
	// warned says that an event has reported that the node cannot have the volume.
	warned bool
}

// step is what is to be done next in the competition for a claim.
type step int

const (
	// wait: it is not yet the turn of this node.
	wait step = iota
	// begin: begin to compete, as nobody has taken the claim yet, or another node has.
	begin
	// seek: check whether the node that has taken the claim still exists.
	seek
	// take: take the claim for the own node, if that can have it.
	take
)

// next decides about a claim that holder, if any, has taken.
func (t turn) next(holder string, now time.Time) step {
	switch {
	case t.due.IsZero() || t.holder != holder:
		return begin
	case now.Before(t.due):
		return wait
	case holder != "" && !t.gone:
		return seek
	}
	return take
}

// pauses makes the pauses of a node: by its name they differ from those of other nodes.
type pauses struct {
	node string
	// base and max are the shortest first and the longest pause.
	base, max time.Duration
}

// afterHolderGone returns the turn after the holder of a claim was found to be gone: the competition begins again.
func (p pauses) afterHolderGone(t turn, claim types.UID, now time.Time) turn {
	return turn{holder: t.holder, gone: true, due: now.Add(p.pause(claim, 0))}
}

// nextTurn returns the turn after one in vain, with a longer pause.
func (p pauses) nextTurn(t turn, claim types.UID, now time.Time) turn {
	t.tries++
	t.due = now.Add(p.pause(claim, t.tries))
	return t
}

// afterNoCapacity returns the turn after the driver had no capacity for a claim that was taken: it comes after the first turn of every
// other instance, which is within the shortest pause.
func (p pauses) afterNoCapacity(t turn, claim types.UID, now time.Time) turn {
	t = turn{tries: t.tries + 1, warned: t.warned}
	t.due = now.Add(p.base + p.pause(claim, t.tries))
	return t
}

// worthWarning reports whether an event is to report that the capacity is not enough: once, as soon as the pauses grow no more.
func (p pauses) worthWarning(t turn) bool {
	return !t.warned && p.upTo(t.tries) == p.max
}

// pause returns the pause after so many in vain: it doubles up to the longest, and is shortened by a part of the shortest that depends on node, claim and attempt only:
// the pauses of the nodes differ, in another order for each claim, and yet every run is like the last.
func (p pauses) pause(claim types.UID, tries int) time.Duration {
	return max(soon, p.upTo(tries)-time.Duration(float64(p.base)*p.part(string(claim), tries)))
}

// upTo returns the longest that a pause may be.
func (p pauses) upTo(tries int) time.Duration {
	pause := p.base
	for range tries {
		if pause >= p.max/2 {
			return p.max
		}
		pause *= 2
	}
	return min(pause, p.max)
}

// part returns a number from 0 up to 1 that depends on the node, what it is for, and the attempt.
func (p pauses) part(what string, tries int) float64 {
	return reconcile.Part(fmt.Sprintf("%s#%s#%d", p.node, what, tries))
}
