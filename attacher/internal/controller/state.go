package controller

import (
	"cmp"
	"slices"
)

// State is what /debug/state shows.
type State struct {
	Driver   string      `json:"driver"`
	Features Features    `json:"features"`
	Running  []Operation `json:"running"`
	Waiting  []Waiting   `json:"waiting"`
	Resync   ResyncState `json:"resync"`
}

// Waiting is a VolumeAttachment that is not yet what it should be.
type Waiting struct {
	Attachment string `json:"attachment"`
	Node       string `json:"node"`
	Step       string `json:"step"`
	Error      string `json:"error,omitempty"`
}

// State returns a snapshot.
func (c *Controller) State() State {
	return State{
		Driver:   c.cfg.Driver,
		Features: c.features(),
		Running:  c.busy.list(),
		Waiting:  c.waiting(),
		Resync:   c.resync.state(),
	}
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
