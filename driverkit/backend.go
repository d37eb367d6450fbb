package driverkit

import (
	"context"
)

// Backend is a storage system as the kit needs it. Implementations must be safe for concurrent use: for one volume the kit makes one call at a time that
// changes it, in one process, but Get and other calls that only read run beside it.
//
// Every function may be called again with the same request, because a CO repeats calls whose answer it did not get, and must then have the same
// result. Errors wrap one of this package's, or have a gRPC status; any other error is INTERNAL. ctx ends at the call's deadline: a function that
// returns then is called again.
type Backend interface {
	// Create makes a volume. The name is the idempotency key: if the storage system has a volume of this name, Create returns that volume as it is.
	// The kit compares its size, source and topology with the request, so that the storage system need not remember parameters. Create returns when
	// the volume can be used.
	// Errors: ErrInvalid, ErrOutOfRange, ErrExhausted, ErrNotFound for a missing source (CSI v1.13, "CreateVolume").
	Create(ctx context.Context, req *CreateRequest) (*Volume, error)
	// Delete deletes a volume and its data. NotFound of it is success, ErrInUse is for a volume that still has users or dependent snapshots
	// (CSI v1.13, "DeleteVolume").
	Delete(ctx context.Context, req *DeleteRequest) error
	// Get returns a volume by its id, or ErrNotFound (CSI v1.13, "ControllerGetVolume"). Nodes call it only to tell a volume that does not exist from one that
	// is not staged; there any other error counts as nothing.
	Get(ctx context.Context, req *GetRequest) (*Volume, error)
	// Stage makes a volume available on this node, and returns in which form; the kit formats, checks, mounts and grows a device, and mounts a
	// directory. Stage itself mounts nothing at StageRequest.Path unless it returns Staged.Mounted (CSI v1.13, "NodeStageVolume").
	Stage(ctx context.Context, req *StageRequest) (*Staged, error)
	// Unstage undoes Stage, and ReadOnlyDevice of a ReadOnlyDevicer, after the kit has unmounted the volume everywhere on this node. It succeeds for a
	// volume that is not staged, or was staged only in part (CSI v1.13, "NodeUnstageVolume").
	Unstage(ctx context.Context, req *UnstageRequest) error
}

// CreateRequest asks for a volume.
type CreateRequest struct {
	// Name is unique per driver: at most 128 bytes without control characters other than tab and line ends.
	Name string
	// Size is the range that the size must be in; see Range.Choose.
	Size Range
	// Capabilities are the ways in which the volume is to be used; at least one.
	Capabilities []Capability
	// Parameters are those of the StorageClass, MutableParameters those of the VolumeAttributesClass. The kit does not check them: a Backend refuses
	// parameters that it does not know, with ErrInvalid.
	Parameters, MutableParameters map[string]string
	// Secrets are those of the StorageClass. They must not be stored, logged, or part of an error.
	Secrets Secrets
	// Topology says from where the volume must be reachable; see TopologyRequirement.Choose.
	Topology TopologyRequirement
	// Source is the snapshot or volume whose data the volume starts with; nil for an empty volume. It is set only where the Backend is a
	// Snapshotter or Cloner.
	Source *Source
}

// DeleteRequest asks to delete a volume.
type DeleteRequest struct {
	// ID is Volume.ID of Create. A volume that the driver did not make may have any id.
	ID string
	// Secrets are those of the StorageClass.
	Secrets Secrets
	// Inline says that the volume is one of CreateInline, which its pod does not use any more.
	Inline bool
}

// GetRequest asks for a volume.
type GetRequest struct {
	// ID is Volume.ID of Create, or any other text.
	ID string
	// Secrets are empty for ControllerGetVolume and for the kit's own checks, for which CSI has none.
	Secrets Secrets
}

// StageRequest asks for a volume on this node.
type StageRequest struct {
	// ID is Volume.ID of Create.
	ID string
	// Path is an absolute path: the directory at which the volume is to be mounted.
	Path string
	// Capability is how the volume is to be used.
	Capability Capability
	// ReadOnly says that nobody will write through this mount.
	ReadOnly bool
	// Secrets are those for nodes.
	Secrets Secrets
	// VolumeContext is Volume.Context of Create, with what the CO adds to it; PublishContext is the result of Attach.
	VolumeContext, PublishContext map[string]string
}

// Staged is the form in which Stage made a volume available: exactly one of Device, Directory and Mounted is set.
type Staged struct {
	// Device is the absolute path of a block device. The kit makes a file system on a blank device, checks, mounts and grows it; a raw block volume
	// is published as it is. The kit never formats a device with other contents.
	Device string
	// FSType is the file system of Device where the CO names none; "ext4" if empty.
	FSType string
	// Formatted says that Device has a file system already, as the driver has made or copied it. The kit never formats such a device: what begins with zeros has
	// lost blocks, and the answer is DATA_LOSS. A driver that knows should say it.
	Formatted bool
	// ReadOnly says that Device or Directory refuses writes, because the volume is attached read-only: the kit mounts it read-only whatever the CO asks
	// for. Without it a file system that refuses writes counts as broken: it became read-only after an error. A raw block volume is published read-only only if it is set, or the Backend is a ReadOnlyDevicer.
	ReadOnly bool
	// Directory is the absolute path of a directory, which the kit bind-mounts.
	Directory string
	// Mounted says that Stage mounted the volume at StageRequest.Path itself, such as a network file system.
	Mounted bool
}

// UnstageRequest asks to undo Stage.
type UnstageRequest struct {
	// ID is that of the StageRequest.
	ID string
	// Path is that of the StageRequest. Nothing is mounted there any more.
	Path string
	// Staged is what Stage returned. For a volume that the kit's journal does not know, as another driver has staged it, or the state directory was lost, it is what was mounted at Path: the Device, or
	// Mounted. nil where the kit does not know, because Stage did not return, or the node was restarted since, so that devices may have other names.
	Staged *Staged
	// VolumeContext and PublishContext are those of the StageRequest; nil for a volume that the kit's journal does not know. CSI has no secrets here.
	VolumeContext, PublishContext map[string]string
}
