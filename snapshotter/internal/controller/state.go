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
	// Groups is about contents of group snapshots; absent if they are off.
	Groups *GroupState `json:"groups,omitempty"`
}

// GroupState is the part of State about group snapshots.
type GroupState struct {
	// Version is the one of the API that is used, empty while the API server has none.
	Version string          `json:"version,omitempty"`
	Queue   reconcile.State `json:"queue"`
	Waiting []Waiting       `json:"waiting"`
}

// Waiting is a content that does not have yet what it asks for.
type Waiting struct {
	Content string `json:"content"`
	// Step is what is to be done next: create, release, read, members, delete, finish.
	Step string `json:"step"`
	// Uncertain: the driver may be taking the snapshot, or may have taken it.
	Uncertain bool `json:"uncertain,omitempty"`
	// Failures counts the attempts in a row that have failed, Polls how often the driver has answered that the snapshot is not
	// ready, and Error is the last failure.
	Failures int    `json:"failures,omitempty"`
	Polls    int    `json:"polls,omitempty"`
	Error    string `json:"error,omitempty"`
	// Next is the time of the next attempt.
	Next time.Time `json:"next,omitzero"`
}

// State returns a snapshot, which is a State, or nil if the controller does not run yet.
func (c *Controller) State() any {
	if !c.started.Load() {
		return nil
	}
	s := State{Driver: c.cfg.Driver, Features: c.cfg.Features(), Queue: c.snapshots.queue.State(), Waiting: c.snapshots.state()}
	if c.groups != nil {
		s.Groups = &GroupState{Version: c.groups.servedVersion(), Queue: c.groups.queue.State(), Waiting: c.groups.state()}
	}
	return s
}

// state returns the contents that wait, sorted by name.
func (l *loop) state() []Waiting {
	waiting := []Waiting{}
	for r := range l.all() {
		last := l.memory.of(r.name, r.uid)
		step := plan(l.names, r, last)
		if step == doNothing {
			continue
		}
		uncertain := isUncertain(l.names, r, last)
		last = last.of(step, r)
		waiting = append(waiting, Waiting{
			Content: r.name, Step: step.String(), Uncertain: uncertain,
			Failures: last.failures, Polls: last.polls, Error: last.err, Next: last.due,
		})
	}
	slices.SortFunc(waiting, func(x, y Waiting) int { return cmp.Compare(x.Content, y.Content) })
	return waiting
}
