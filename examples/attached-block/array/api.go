// Package array is a mock storage array: a server with an HTTP API whose LUNs are plain files, and the API's client. It takes the place of the storage
// system and of its client library; it is no example of how to write one.
//
// Array and nodes are one machine: where a real array shows a LUN to a node over a network, the mock makes a loop device.
package array

import "time"

// Place is a pool, and where it is.
type Place struct {
	Pool, Zone, Rack string
}

// Pool is where LUNs are.
type Pool struct {
	Place

	// Size is the size in bytes, Free what is left of it.
	Size, Free int64
}

// Kind is a kind of LUN.
type Kind string

// The kinds of LUNs. Snapshots cannot be exported.
const (
	Volumes   Kind = "volumes"
	Snapshots Kind = "snapshots"
)

// Ref names a LUN.
type Ref struct {
	Kind Kind
	ID   string
}

// LUN is a volume or a snapshot.
type LUN struct {
	Place
	Ref

	Name string
	Size int64
	// Source is the LUN that this one is a copy of; the zero value for an empty one.
	Source  Ref
	Created time.Time
	// Hosts are the nodes to which the LUN is exported, and whether read-only.
	Hosts map[string]bool
}

// Request is what all calls of the API have; each call uses some of it.
type Request struct {
	LUN

	// Host is the node of an export; empty for all in Unexport.
	Host     string
	ReadOnly bool
}

// Error is an answer of the array that is not success.
type Error struct {
	// Status is that of HTTP.
	Status int `json:"-"`
	Text   string
	// Missing is the id of the LUN or host that does not exist; empty for any other reason, of which a wrong address is one.
	Missing string
}

func (e *Error) Error() string { return e.Text }
