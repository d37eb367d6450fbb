package volume

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Group is a number of snapshots of one moment.
type Group struct {
	ID ID `json:"id"`
	// Name is the name that the CO gave in CreateVolumeGroupSnapshot; unique.
	Name string `json:"name"`
	// Created is the moment. With volumes in use it is one a little later: what
	// was written before Created is in the snapshots.
	Created time.Time `json:"created"`
	// Parameters are the parameters of CreateVolumeGroupSnapshot.
	Parameters map[string]string `json:"parameters,omitempty"`
	// Members are the ids of the snapshots, in the order of the volumes in the
	// request.
	Members []ID `json:"members"`
	// Whole says that the contents of all snapshots are complete, and of one
	// moment. Their own records say so afterwards.
	Whole bool `json:"whole,omitempty"`
	// Snapshots are the members as they are now; the record leaves them out.
	Snapshots []*Snapshot `json:"-"`
}

// RecordID is the name of the group's record.
func (g *Group) RecordID() string { return string(g.ID) }

// Key is what the group is found by.
func (g *Group) Key() (ID, string) { return g.ID, g.Name }

// KeptIn is nowhere: the members have contents.
func (g *Group) KeptIn() string { return "" }

// Clone returns a copy that shares nothing with g.
func (g *Group) Clone() *Group {
	c := *g
	c.Parameters = maps.Clone(g.Parameters)
	c.Members = slices.Clone(g.Members)
	c.Snapshots = slices.Clone(g.Snapshots)
	return &c
}

// Filling reports whether the contents of a member are not complete yet.
func (g *Group) Filling() bool {
	return slices.ContainsFunc(g.Snapshots, func(s *Snapshot) bool { return s.Filling })
}

// GroupService is the part of the controller side that makes snapshots of
// several volumes at one moment. The members are snapshots like others, but
// come and go together.
type GroupService interface {
	// CreateGroup makes a snapshot of each volume, or of none. ErrConcurrentWrite or
	// ErrPrecondition when they cannot be of one moment.
	CreateGroup(ctx context.Context, req *GroupRequest) (*Group, error)
	// DeleteGroup removes a group and its snapshots, which the CO lists;
	// ErrInvalid for another list.
	DeleteGroup(ctx context.Context, id ID, members []ID) error
	// GetGroup returns a group with its snapshots, or ErrNotFound; ErrInvalid
	// for another list of members. Who does not know them says nil.
	GetGroup(ctx context.Context, id ID, members []ID) (*Group, error)
	// FindGroup returns the group of that name, or ErrNotFound.
	FindGroup(ctx context.Context, name string) (*Group, error)
}

// GroupRequest asks for a group of snapshots.
type GroupRequest struct {
	Name       string
	Sources    []ID
	Parameters map[string]string
}

// Check refuses a request without volumes, or with one of them twice, with an
// ErrInvalid.
func (r *GroupRequest) Check() error {
	if len(r.Sources) == 0 {
		return fmt.Errorf("source volume ids: at least one is required: %w", ErrInvalid)
	}
	seen := map[ID]bool{}
	for _, id := range r.Sources {
		if seen[id] {
			return fmt.Errorf("source volume ids: %q is there twice: %w", id, ErrInvalid)
		}
		seen[id] = true
	}
	return CheckSnapshotParameters(r.Parameters)
}

// CheckSame reports whether an existing group of the same name is what the
// request asks for. If not, the error is an ErrExists. The order of the
// volumes does not count.
func (g *Group) CheckSame(req *GroupRequest) error {
	sources := make([]ID, 0, len(g.Snapshots))
	for _, s := range g.Snapshots {
		sources = append(sources, s.Source)
	}
	var what string
	switch {
	case !sameIDs(sources, req.Sources):
		what = "its volumes are " + join(sources)
	case !maps.Equal(g.Parameters, req.Parameters):
		what = "its parameters differ"
	default:
		return nil
	}
	return fmt.Errorf("group %q has id %q but %s: %w", g.Name, g.ID, what, ErrExists)
}

// CheckMembers reports whether a list names exactly the snapshots of the group.
// If not, the error is an ErrInvalid. The layers of the driver say nil, which
// is no list; the empty list of a CO is one.
func (g *Group) CheckMembers(list []ID) error {
	if list == nil || sameIDs(g.Members, list) {
		return nil
	}
	return fmt.Errorf("snapshot ids %s: group %q has %s: %w", join(list), g.ID, join(g.Members), ErrInvalid)
}

func sameIDs(a, b []ID) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func join(ids []ID) string {
	list := make([]string, 0, len(ids))
	for _, id := range slices.Sorted(slices.Values(ids)) {
		list = append(list, string(id))
	}
	return "[" + strings.Join(list, " ") + "]"
}
