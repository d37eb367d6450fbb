package volume

import (
	"context"
)

// Service is the controller side: persistent volumes. Implementations and
// decorators stack: the gRPC layer calls a decorator, which calls the
// backend. A driver for real storage implements this interface over the API
// of its storage system.
type Service interface {
	// Create makes a volume. A decorated service answers the same request
	// with the same volume again.
	Create(ctx context.Context, req *CreateRequest) (*Volume, error)
	// Delete removes a volume and its data. ErrInUse while it is used.
	Delete(ctx context.Context, id ID) error
	// Get returns a volume, or ErrNotFound.
	Get(ctx context.Context, id ID) (*Volume, error)
	// Find returns the volume of that name, or ErrNotFound.
	Find(ctx context.Context, name string) (*Volume, error)
	// List returns one page of volumes. ErrBadToken for a foreign token.
	List(ctx context.Context, req ListRequest) (*Page, error)
	// Capacity returns the free space for new volumes.
	Capacity(ctx context.Context, req *CapacityRequest) (Capacity, error)
	// Publish attaches a volume to a node.
	Publish(ctx context.Context, req *PublishRequest) (*Volume, error)
	// Unpublish detaches a volume from a node; from every node when the node
	// is empty.
	Unpublish(ctx context.Context, id ID, node string) error
	// Expand makes a volume larger. The node service may have to expand it,
	// too, see Volume.ExpandOnNode.
	Expand(ctx context.Context, req *ExpandRequest) (*Volume, error)
	// Modify sets mutable parameters, all or none of them.
	Modify(ctx context.Context, id ID, parameters map[string]string) error
	// Health returns the conditions of a volume.
	Health(ctx context.Context, id ID) (Health, error)
	// ListHealth returns one page of the volumes that have conditions.
	// ErrBadToken for a foreign token.
	ListHealth(ctx context.Context, req ListRequest) (*HealthPage, error)
	// Support returns the supported capabilities.
	Support() Support
}

// Services is the whole controller side. Each has a file of its own in every
// layer; a driver without groups, for example, drops the line here and those
// files.
type Services interface {
	Service
	SnapshotService
	GroupService
	CopyService
}

// ListRequest asks for one page.
type ListRequest struct {
	// Token is empty for the first page, else Page.Next of the page before.
	Token string
	// Max is the greatest number of entries; zero means no limit.
	Max int
}

// Page is a part of the list.
type Page struct {
	Volumes []*Volume
	// Next asks for the following page; empty after the last one.
	Next string
}

// CapacityRequest asks for the capacity of a pool and a segment.
type CapacityRequest struct {
	Parameters   map[string]string
	Capabilities []Capability
	// Topology is the segment in question; nil means anywhere.
	Topology Segment
}

// NodeService is the node side: mounts. It is called on the node on which
// the volume is used.
type NodeService interface {
	// Lookup returns the node's record of a volume, or ErrNotFound.
	Lookup(ctx context.Context, id ID) (*NodeVolume, error)
	// MountMatches reports whether the mount or device at a path of known still exists
	// as recorded, and takes writes unless it is recorded as read-only.
	MountMatches(ctx context.Context, known *NodeVolume, path string) (bool, error)
	// Stage mounts a volume at its staging path.
	Stage(ctx context.Context, req *StageRequest) error
	// Unstage undoes Stage. For an unknown volume it only cleans up the path.
	Unstage(ctx context.Context, id ID, path string) error
	// Publish mounts a staged volume, or a new inline volume, at a target.
	Publish(ctx context.Context, req *TargetRequest) error
	// Unpublish undoes Publish and deletes an inline volume. For an unknown
	// volume it only cleans up the path.
	Unpublish(ctx context.Context, id ID, path string) error
	// Expand resizes device and file system of a volume to its size, and
	// returns that in bytes.
	Expand(ctx context.Context, req *NodeExpandRequest) (int64, error)
	// Reconcile applies to a staged volume what has changed in the controller's
	// record. It does nothing for a volume that is not staged, and nothing twice.
	Reconcile(ctx context.Context, id ID) error
	// Health returns the conditions of a volume on this node; paths are its
	// staging and target paths.
	Health(ctx context.Context, id ID, paths ...string) (Health, error)
	// StorageHealth returns the conditions of the storage that all volumes
	// depend on.
	StorageHealth(ctx context.Context) []Condition
	// Stats measures a volume that is mounted at the path.
	Stats(ctx context.Context, id ID, path string) (*Stats, error)
	// Support returns the supported capabilities.
	Support() Support
}

// StageRequest asks for a staging mount.
type StageRequest struct {
	ID    ID
	Stage Stage
}

// TargetRequest asks for a published mount.
type TargetRequest struct {
	ID     ID
	Target Target
	// Inline is set for an inline volume.
	Inline *InlineRequest
}

// InlineRequest describes an inline volume to make.
type InlineRequest struct {
	// Attributes are the driver's own volume attributes.
	Attributes map[string]string
	// Pod names the pod that the volume belongs to, for messages: "namespace/name", or empty where the CO does not say.
	Pod string
}

// Stats is the usage of a volume: of its own files, not of other volumes on the
// same file system.
type Stats struct {
	Bytes Usage
	// Inodes have no limit of their own: what the file system still has can
	// be used. A device has none.
	Inodes *Usage
}

// Usage is one kind of space.
type Usage struct {
	Total, Used, Available int64
}
