package controller

import (
	"cmp"
	"slices"
	"time"

	"github.com/longshore-csi/longshore/csikit/reconcile"
)

// State is what /debug/state shows.
type State struct {
	Driver   string          `json:"driver"`
	Features Features        `json:"features"`
	Queue    reconcile.State `json:"queue"`
	Waiting  []Waiting       `json:"waiting"`
}

// Waiting is a claim that does not have yet what it asks for.
type Waiting struct {
	Claim  string     `json:"claim"`
	Expand *Operation `json:"expand,omitempty"`
	Modify *Operation `json:"modify,omitempty"`
}

// Operation is what a claim waits for.
type Operation struct {
	// Target is the capacity or the VolumeAttributesClass.
	Target string `json:"target"`
	// Status is that of the claim's status, empty if the operation has not begun.
	Status string `json:"status,omitempty"`
	// Failures counts the attempts in a row that have failed, Error is the last of them.
	Failures int    `json:"failures,omitempty"`
	Error    string `json:"error,omitempty"`
	// Next is the time of the next attempt.
	Next time.Time `json:"next,omitzero"`
	// InUse: the expansion waits until the volume is not used.
	InUse bool `json:"inUse,omitempty"`
}

// State returns a snapshot, which is a State, or nil if the controller does not run yet.
func (c *Controller) State() any {
	if !c.started.Load() {
		return nil
	}
	s := State{Driver: c.cfg.Driver, Features: c.cfg.Features(), Queue: c.queue.State(), Waiting: []Waiting{}}
	for claim := range c.claims.All() {
		if !c.needsSync(claim) {
			continue
		}
		v, ok := c.find(keyOf(claim))
		if !ok {
			continue
		}
		last := c.memory.of(keyOf(claim), claim.UID)
		w := Waiting{Claim: keyOf(claim)}
		if needsExpand(v.claim) {
			requested := storage(v.claim.Spec.Resources.Requests)
			w.Expand = last.expand.state(requested.String(), string(resizeStatus(v.claim)))
		}
		if c.cfg.AttributesClasses && needsModify(v.claim) {
			_, status := targetClass(v.claim)
			w.Modify = last.modify.state(wantedClass(v.claim), string(status))
		}
		s.Waiting = append(s.Waiting, w)
	}
	slices.SortFunc(s.Waiting, func(x, y Waiting) int { return cmp.Compare(x.Claim, y.Claim) })
	return s
}

func (a attempt) state(wanted, status string) *Operation {
	return &Operation{
		Target: cmp.Or(a.target, wanted), Status: status, Failures: a.failures, Error: a.err, Next: a.due, InUse: a.inUse,
	}
}
