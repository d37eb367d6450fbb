package controller

import (
	"cmp"
	"slices"

	"github.com/longshore-csi/longshore/csikit/reconcile"
)

// State is what /debug/state shows.
type State struct {
	Queues  []reconcile.State `json:"queues"`
	Waiting []Waiting         `json:"waiting"`
}

// Waiting is a snapshot that is not ready, or is being deleted.
type Waiting struct {
	Snapshot string `json:"snapshot"`
	Content  string `json:"content,omitempty"`
	Deleting bool   `json:"deleting,omitempty"`
	Error    string `json:"error,omitempty"`
}

// State returns a snapshot, which is a State, or nil if the controller does not run yet.
func (c *Controller) State() any {
	if !c.started.Load() {
		return nil
	}
	s := State{Queues: []reconcile.State{c.singles.queue.State(), c.claimQueue.State()}, Waiting: []Waiting{}}
	for snapshot := range c.snapshots.All() {
		o := ownerOfSnapshot(snapshot)
		deleting := o.GetDeletionTimestamp() != nil
		if o.isReady() && !deleting {
			continue
		}
		w := Waiting{Snapshot: keyOf(o), Content: o.bound(), Deleting: deleting}
		if o.status != nil && o.status.Error != nil {
			w.Error = messageOf(o.status.Error)
		}
		s.Waiting = append(s.Waiting, w)
	}
	slices.SortFunc(s.Waiting, func(x, y Waiting) int { return cmp.Compare(x.Snapshot, y.Snapshot) })
	return s
}
