package volume

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Snapshot is what a volume contained at one moment. It is a copy of its own:
// the volume may be deleted.
type Snapshot struct {
	ID ID `json:"id"`
	// Name is the name that the CO gave in CreateSnapshot; unique.
	Name string `json:"name"`
	// Source is the volume that it was made of.
	Source ID `json:"source"`
	// Size is the capacity in bytes that the volume had, and the least that a
	// volume made of the snapshot has.
	Size int64 `json:"size"`
	// Created is the moment.
	Created time.Time `json:"created"`
	// Filling says that the contents are not complete yet.
	Filling bool `json:"filling,omitempty"`
	// Pool is charged with Size; empty when no pools are configured.
	Pool string `json:"pool,omitempty"`
	// Home is that of the volume, where blocks can be shared.
	Home string `json:"home,omitempty"`
	// Parameters are the parameters of CreateSnapshot.
	Parameters map[string]string `json:"parameters,omitempty"`
	// Node is the one node on which volumes can be made of it; empty means
	// every node.
	Node string `json:"node,omitempty"`
	// Form is the form of the contents.
	Form Form `json:"form"`
	// Group is the group that it was made with, and goes with.
	Group ID `json:"group,omitempty"`
}

// RecordID is the name of the snapshot's record.
func (s *Snapshot) RecordID() string { return string(s.ID) }

// Key is what the snapshot is found by.
func (s *Snapshot) Key() (ID, string) { return s.ID, s.Name }

// KeptIn is where the contents are.
func (s *Snapshot) KeptIn() string { return s.Home }

// Clone returns a copy that shares nothing with s.
func (s *Snapshot) Clone() *Snapshot {
	c := *s
	c.Parameters = maps.Clone(s.Parameters)
	return &c
}

// SnapshotService is the part of the controller side that keeps snapshots.
type SnapshotService interface {
	// CreateSnapshot copies the contents of a volume. A decorated service
	// answers the same request with the same snapshot again.
	CreateSnapshot(ctx context.Context, req *SnapshotRequest) (*Snapshot, error)
	// DeleteSnapshot removes a snapshot; ErrInUse while a volume is being made
	// of it, ErrInvalid for the member of a group.
	DeleteSnapshot(ctx context.Context, id ID) error
	// GetSnapshot returns a snapshot, or ErrNotFound.
	GetSnapshot(ctx context.Context, id ID) (*Snapshot, error)
	// FindSnapshot returns the snapshot of that name, or ErrNotFound.
	FindSnapshot(ctx context.Context, name string) (*Snapshot, error)
	// ListSnapshots returns one page. ErrBadToken for a foreign token.
	ListSnapshots(ctx context.Context, req SnapshotListRequest) (*SnapshotPage, error)
}

// SnapshotRequest asks for a snapshot.
type SnapshotRequest struct {
	Name         string
	Source       ID
	Parameters   map[string]string
	Requirements Requirements
}

// SnapshotListRequest asks for one page of snapshots.
type SnapshotListRequest struct {
	ListRequest
	// Source leaves those of one volume; empty leaves all.
	Source ID
}

// SnapshotPage is a part of the list.
type SnapshotPage struct {
	Snapshots []*Snapshot
	// Next asks for the following page; empty after the last one.
	Next string
}

// Parameters without an effect. keyIgnoreFailedRead is that of the Kubernetes
// project's hostpath driver for the program that it copies with.
// keyDeletionPolicy is in the classes of group snapshots that the storage suite
// of Kubernetes makes, which takes the field of the class for a parameter.
const (
	keyIgnoreFailedRead = "ignoreFailedRead"
	keyDeletionPolicy   = "deletionPolicy"
)

// CheckSnapshotParameters refuses parameters that do not exist with an
// ErrInvalid.
func CheckSnapshotParameters(parameters map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		if key != keyIgnoreFailedRead && key != keyDeletionPolicy && !reserved(key) {
			return fmt.Errorf("parameter %q: unknown, must be one of [%s]: %w", key, keyIgnoreFailedRead, ErrInvalid)
		}
	}
	return nil
}

// CheckSame reports whether an existing snapshot of the same name is what the
// request asks for. If not, the error is an ErrExists.
func (s *Snapshot) CheckSame(req *SnapshotRequest) error {
	var what string
	switch {
	case s.Source != req.Source:
		what = fmt.Sprintf("its source is volume %q", s.Source)
	case s.Group != "":
		what = fmt.Sprintf("it is a member of group %q", s.Group)
	case !req.Requirements.Allow(s.Node):
		what = fmt.Sprintf("it is on node %q, which the accessibility requirements exclude", s.Node)
	default:
		return nil
	}
	return fmt.Errorf("snapshot %q has id %q but %s: %w", s.Name, s.ID, what, ErrExists)
}
