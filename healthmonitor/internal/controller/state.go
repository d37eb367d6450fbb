package controller

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// State is what /debug/state shows.
type State struct {
	Driver   string     `json:"driver"`
	Features Features   `json:"features"`
	Sweep    SweepState `json:"sweep"`
	// Problems has the volumes with problems, and those whose last call failed.
	Problems []VolumeState `json:"problems"`
	// DownNodes are the nodes that are not ready, or were deleted.
	DownNodes []string `json:"downNodes,omitempty"`
}

// SweepState is the last sweep over all volumes.
type SweepState struct {
	Began   time.Time `json:"began,omitzero"`
	Took    string    `json:"took,omitempty"`
	Volumes int       `json:"volumes"`
	Error   string    `json:"error,omitempty"`
}

// VolumeState is the state of a volume.
type VolumeState struct {
	Claim  string `json:"claim"`
	Volume string `json:"volume"`
	// Health are the problems that the driver has reported last, since when as events have it.
	Health string    `json:"health,omitempty"`
	Since  time.Time `json:"since,omitzero"`
	// Failures counts the calls in a row that have failed, Error is the last of them.
	Failures int    `json:"failures,omitempty"`
	Error    string `json:"error,omitempty"`
}

// State returns a snapshot, which is a State, or nil if the controller does not run yet.
func (c *Controller) State() any {
	if !c.started.Load() {
		return nil
	}
	s := State{Driver: c.cfg.Driver, Features: c.cfg.Features(), Sweep: c.last.get(), Problems: c.records.state()}
	if c.nodes != nil {
		c.nodes.mu.Lock()
		defer c.nodes.mu.Unlock()
		s.DownNodes = slices.Sorted(maps.Keys(c.nodes.down))
	}
	return s
}

func (l *lastSweep) get() SweepState {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// state lists the records, sorted by claim.
func (r *records) state() []VolumeState {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]VolumeState, 0, len(r.all))
	for _, rec := range r.all {
		all = append(all, VolumeState{
			Claim: rec.key, Volume: rec.volume, Health: cmp.Or(describe(rec.problems), rec.report.text), Since: rec.since, Failures: rec.failures, Error: rec.err,
		})
	}
	slices.SortFunc(all, func(x, y VolumeState) int { return cmp.Compare(x.Claim, y.Claim) })
	return all
}
