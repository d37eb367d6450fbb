package controller

import (
	"fmt"
	"hash/fnv"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

// This file decides how instances on many nodes compete for claims with immediate binding, for which no node is
// selected: each waits for its turn, and the first whose node has enough capacity takes the claim. No worker waits: a turn is a
// time in a table, and a key that comes back to the queue then.

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
	// warned says that an event has reported that the node has not enough capacity.
	warned bool
}

// planNode decides about a claim that is not for the own node: it is left to another one, or competed for.
func planNode(s claimState) (claimPlan, bool) {
	holder := view.SelectedNode(s.claim)
	switch {
	case s.node.Mine(s.claim):
		return claimPlan{}, false
	case view.WaitsForConsumer(s.class):
		return leave(fmt.Sprintf("claim is for node %q", holder)), true
	case !s.node.Immediate:
		return leave("claims with immediate binding are left to other nodes"), true
	case s.excluded != nil:
		return leave("the own node may not have it: " + s.excluded.Error()), true
	}
	if plan, ok := planSource(s); ok && plan.verb == claimPopulator {
		return leave(plan.why), true
	}
	return planTurn(s, holder), true
}

// planTurn decides what is to be done in the competition for a claim that holder, if any, has taken.
func planTurn(s claimState, holder string) claimPlan {
	switch {
	case s.turn.due.IsZero() || s.turn.holder != holder:
		return claimPlan{verb: claimBegin, why: "node is to be found", node: holder}
	case s.now.Before(s.turn.due):
		return claimPlan{verb: claimDelay, why: "waits for its turn", after: s.turn.due.Sub(s.now)}
	case holder != "" && !s.turn.gone:
		return claimPlan{verb: claimSeek, why: fmt.Sprintf("node %q has had time to provision it", holder)}
	}
	return claimPlan{verb: claimCompete, why: "it is the turn of this node"}
}

// firstTurn returns the first turn for a claim that no node has taken.
func (n Node) firstTurn(claim types.UID, now time.Time) turn {
	return turn{due: now.Add(n.pause(claim, 0))}
}

// afterHolderGone returns the turn after the holder of a claim was found to be gone: the competition begins again.
func (n Node) afterHolderGone(t turn, claim types.UID, now time.Time) turn {
	return turn{holder: t.holder, gone: true, due: now.Add(n.pause(claim, 0))}
}

// nextTurn returns the turn after one in vain, with a longer pause.
func (n Node) nextTurn(t turn, claim types.UID, now time.Time) turn {
	t.tries++
	t.due = now.Add(n.pause(claim, t.tries))
	return t
}

// afterNoCapacity returns the turn after the driver had no capacity for a claim that was taken: it comes after the first turn of every
// other instance, which is within the shortest pause.
func (n Node) afterNoCapacity(t turn, claim types.UID, now time.Time) turn {
	t = turn{tries: t.tries + 1, warned: t.warned}
	t.due = now.Add(n.BaseDelay + n.pause(claim, t.tries))
	return t
}

// worthWarning reports whether an event is to report that the capacity is not enough: once, as soon as the pauses grow no more.
func (n Node) worthWarning(t turn) bool {
	return !t.warned && n.upTo(t.tries) == n.MaxDelay
}

// pause returns the pause after so many in vain: it doubles up to the longest, and is shortened by up to the shortest, so
// that the pauses of the nodes differ.
func (n Node) pause(claim types.UID, tries int) time.Duration {
	return max(soon, n.upTo(tries)-n.jitter(claim, tries))
}

// upTo returns the longest that a pause may be.
func (n Node) upTo(tries int) time.Duration {
	pause := n.BaseDelay
	for range tries {
		if pause >= n.MaxDelay/2 {
			return n.MaxDelay
		}
		pause *= 2
	}
	return min(pause, n.MaxDelay)
}

// jitter returns a part of the shortest pause that depends on node, claim and attempt only: the pauses of the nodes differ, in another
// order for each claim, and yet every run is like the last.
func (n Node) jitter(claim types.UID, tries int) time.Duration {
	return time.Duration(float64(n.BaseDelay) * n.part(string(claim), tries))
}

// part returns a number from 0 up to 1 that depends on the node, what it is for, and the attempt.
func (n Node) part(what string, tries int) float64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s#%s#%d", n.Name, what, tries)
	return float64(mix(h.Sum64())>>32) / (1 << 32)
}

// mix spreads the bits of a hash over all of its bits, as FNV changes little with the last character (the finalizer of
// MurmurHash3).
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	x ^= x >> 33
	return x
}

// offer is what the own node has for a claim.
type offer struct {
	// wanted and available are bytes.
	wanted, available int64
	// known says that GetCapacity was called, and has returned available or err.
	known bool
	err   error
}

// insufficient says why the node cannot have the claim, empty when it can. A driver that does not report its capacity is
// taken to have some: CreateVolume finds out.
func (o offer) insufficient(node string) string {
	switch {
	case o.err != nil:
		return fmt.Sprintf("GetCapacity failed on node %q: %s", node, describe(o.err))
	case o.known && o.available < o.wanted:
		return fmt.Sprintf("Node %q has not enough capacity for the volume: %d bytes are available, %d bytes are requested", node, o.available, o.wanted)
	}
	return ""
}
