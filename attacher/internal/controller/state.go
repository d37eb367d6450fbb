package controller

import (
	"cmp"
	"slices"
	"time"

	"github.com/longshore-csi/longshore/csikit/reconcile"
)

// State is what /debug/state shows.
type State struct {
	Driver   string   `json:"driver"`
	Features Features `json:"features"`
	// Queue has the VolumeAttachments whose last attempt failed, with the error and the time of the next attempt.
	Queue   *reconcile.State `json:"queue,omitempty"`
	Running []Operation      `json:"running"`
	Waiting []Waiting        `json:"waiting"`
	Resync  ResyncState      `json:"resync"`
}

// Operation is an attach or detach operation in progress.
type Operation struct {
	Attachment string    `json:"attachment"`
	Node       string    `json:"node"`
	Step       string    `json:"step"`
	Since      time.Time `json:"since"`
}

// Waiting is a VolumeAttachment that is not yet what it should be.
type Waiting struct {
	Attachment string `json:"attachment"`
	Node       string `json:"node"`
	Step       string `json:"step"`
	Error      string `json:"error,omitempty"`
}

// State returns a snapshot, which is a State.
func (c *Controller) State() any {
	s := State{
		Driver:   c.cfg.Driver,
		Features: c.features(),
		Running:  c.running(),
		Waiting:  c.waiting(),
		Resync:   c.resync.state(),
	}
	if c.started.Load() {
		s.Queue = new(c.vaQueue.State())
	}
	return s
}

// running returns the operations in progress, the oldest first.
func (c *Controller) running() []Operation {
	ops := []Operation{}
	if !c.started.Load() {
		return ops
	}
	for _, r := range c.vaQueue.Running() {
		ops = append(ops, Operation{Attachment: r.Key, Node: r.Class.Group, Step: r.Class.Pool, Since: r.Since})
	}
	slices.SortFunc(ops, func(x, y Operation) int {
		return cmp.Or(x.Since.Compare(y.Since), cmp.Compare(x.Attachment, y.Attachment))
	})
	return ops
}

func (c *Controller) waiting() []Waiting {
	list := []Waiting{}
	for va := range c.vas.All() {
		if !c.ours(va) {
			continue
		}
		next := c.step(va)
		if next == stepNone {
			continue
		}
		w := Waiting{Attachment: va.Name, Node: va.Spec.NodeName, Step: next.String()}
		if e := currentError(va, next); e != nil {
			w.Error = e.Message
		}
		list = append(list, w)
	}
	slices.SortFunc(list, func(x, y Waiting) int { return cmp.Compare(x.Attachment, y.Attachment) })
	return list
}
