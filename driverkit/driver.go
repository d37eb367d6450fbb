package driverkit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/csikit/redact"
	"github.com/longshore-csi/longshore/driverkit/filesystem"
)

// Driver is what a driver can do: a part for each thing, of which the capabilities that it announces follow. What is nil is not announced, and a call of it is answered with UNIMPLEMENTED.
// A part that has several functions is an interface, one that has a single function is that function: Driver{Provisioner: d, Stager: d, Expand: d.Expand}.
//
// Implementations must be safe for concurrent use: for one volume the kit makes one call at a time that changes it, in one process, but Get and other calls that only read run beside it.
//
// Every function may be called again with the same request, because a CO repeats calls whose answer it did not get, and must then have the same result. ctx has the logger of the call, klog.FromContext,
// and is how long the caller waits, not how long work may take: a function whose ctx has ended returns, and is called again. Work that must not be stopped then is for a Background.
//
// Errors wrap one of this package's, or have a gRPC status. Any other error is INTERNAL, or, of a function that makes something, ABORTED: what was asked for may exist, and the CO repeats the same request until
// it has an answer. See Final.
//
// A result is a struct, so that it can have more fields later; nil is one with nothing in it. Functions that undo or check something have none.
type Driver struct {
	// Provisioner creates and deletes volumes. Without it all volumes are made by administrators, or are inline ones.
	Provisioner Provisioner
	// Stager makes volumes available on nodes. Required where Options.Mode has the node service.
	Stager Stager
	// Attacher attaches volumes to nodes before they are staged there.
	Attacher Attacher
	// Snapshotter makes snapshots; CreateRequest.Source may be one.
	Snapshotter Snapshotter
	// GroupSnapshotter makes snapshots of several volumes at one point in time. It needs a Snapshotter.
	GroupSnapshotter GroupSnapshotter
	// Inliner has volumes that are part of a pod.
	Inliner Inliner

	// List returns a page of the volumes, sorted by id; function PageOf makes one of a slice. The kit makes the tokens of pages of the ids, so that a token stays valid when the driver restarts
	// (CSI v1.13, "ListVolumes").
	List func(ctx context.Context, req *ListRequest) (*Page[*Volume], error)
	// ListSnapshots returns a page of the snapshots, sorted by id. It needs a Snapshotter (CSI v1.13, "ListSnapshots").
	ListSnapshots func(ctx context.Context, req *ListSnapshotsRequest) (*Page[*Snapshot], error)
	// Blocks returns the ranges of a snapshot of a block volume that are allocated, or, with BlocksRequest.Base, that differ from those of the base, so that a backup program reads no more than those. It needs a
	// Snapshotter. Errors: ErrNotFound for a snapshot, ErrInvalid for snapshots of different volumes, ErrPrecondition where the changes were not tracked, upon which the CO makes a full backup
	// (CSI v1.13, "GetMetadataAllocated", "GetMetadataDelta").
	Blocks func(ctx context.Context, req *BlocksRequest) (*Blocks, error)
	// Capacity returns the free space for volumes as requested; 0 for a topology that the driver does not serve (CSI v1.13, "GetCapacity").
	Capacity func(ctx context.Context, req *CapacityRequest) (*Capacity, error)
	// Expand makes a volume as large as requested, in use or not; a volume that is large enough keeps its size. On nodes the kit then grows file systems of devices. See Options.OfflineExpansion.
	// Errors: ErrNotFound, ErrOutOfRange, ErrInUse (CSI v1.13, "ControllerExpandVolume").
	Expand func(ctx context.Context, req *ExpandRequest) (*Expanded, error)
	// Modify sets mutable parameters of a volume, all or none of them. Errors: ErrNotFound, ErrInvalid for a parameter that is not known or has a wrong value (CSI v1.13, "ControllerModifyVolume").
	Modify func(ctx context.Context, req *ModifyRequest) (*Modified, error)
	// Validate returns nil if a volume can be used as requested, for a driver that knows better than Options.Support. An ErrInvalid says why not, and is no error for the CO
	// (CSI v1.13, "ValidateVolumeCapabilities").
	Validate func(ctx context.Context, req *ValidateRequest) error
	// VolumeHealth returns the present problems of a volume; none if it is well. ErrNotFound for a volume that does not exist. It must not block on a device that does not answer. With List it also serves
	// ControllerListVolumeHealth. NodeGetVolumeHealth is served in any case: the kit reports mounts that do not exist any more ("NotMounted") and file systems that became read-only after an
	// error ("FileSystemReadOnly") beside what VolumeHealth knows (CSI v1.13, "ControllerGetVolumeHealth").
	VolumeHealth func(ctx context.Context, req *HealthRequest) (*Health, error)
	// StorageHealth returns the present problems of the storage system as this node sees it; none if it is well. It must be quick. It is for a driver that knows more than Probe can say
	// (CSI v1.13, "NodeGetStorageHealth").
	StorageHealth func(ctx context.Context, req *StorageHealthRequest) (*Health, error)
	// Probe checks what the driver depends on, such as its credentials and the connection to its storage system. It must be quick. The CO begins to call the driver when the check has succeeded once. After that its
	// result is in NodeGetStorageHealth and /readyz alone: an outage of the storage system must not have drivers restarted, and what can be done without it must go on (CSI v1.13, "Probe").
	Probe func(ctx context.Context) error

	// DescribeNode completes what Options say about the node, for instance from a metadata service. NodeGetInfo calls it each time.
	DescribeNode func(ctx context.Context, node *Node) error
	// ExpandOnNode lets a staged volume have its new size on this node, before the kit grows the file system of a device: the kernel must read the size again. Without Expand the whole expansion is done here, of volumes
	// in use; that is the only way for volumes that are of one node, as the controller's part of an expansion is not called on the volume's node (CSI v1.13, "NodeExpandVolume").
	ExpandOnNode func(ctx context.Context, req *NodeExpandRequest) (*NodeExpanded, error)
	// Republish is called for a volume that is published already, with StageRequest.Path the target path: COs repeat NodePublishVolume, as kubelets do where the CSIDriver has requiresRepublish, with new
	// tokens and secrets. What it changes must be visible to the pod that is running. Without it a repeated call changes nothing.
	Republish func(ctx context.Context, req *StageRequest) error
	// ReadOnlyDevice makes a second device of a raw block volume that is staged for writing, which refuses writes, and returns it as Staged.Device. It serves NodePublishVolume with readonly, for which the kit otherwise answers
	// INVALID_ARGUMENT: a read-only mount of a device's node does not keep anybody from writing to the device. It is called for each read-only publication, in any number and again with the same request, and returns the
	// same device. req is that of Stage, with ReadOnly set, and the secrets and contexts of NodePublishVolume. Unstage removes this device, too, if there is one: the kit calls it also when ReadOnlyDevice
	// failed or its process died.
	ReadOnlyDevice func(ctx context.Context, req *StageRequest) (*Staged, error)
	// Usage measures a volume on this node, for a driver that knows better than the file system at its path how much of it is used: that of volumes that are directories of one file system. nil leaves it to the
	// kit, which asks the file system, or the device for its size (CSI v1.13, "NodeGetVolumeStats").
	Usage func(ctx context.Context, req *UsageRequest) (*filesystem.Usage, error)
	// Unmount unmounts what Stage has mounted itself, Staged.Mounted, such as a network file system whose server may be gone, which needs force. It is called before Unstage for a path at which something is
	// mounted, and again if it fails. Without it the kit unmounts, never by force or lazily.
	Unmount func(ctx context.Context, req *MountRequest) error
	// OwnsMount reports whether the mount at a path shows the volume; false for a volume that does not exist. The kit asks before it unmounts at a path that its journal does not know for the volume, and
	// refuses with FAILED_PRECONDITION to unmount what is not the volume's. Without it the kit takes the CO's word, and unmounts: the journal may be lost, or another driver may have mounted the volume.
	OwnsMount func(ctx context.Context, req *MountRequest) (bool, error)
}

// check reports parts that cannot be without another one.
func (d *Driver) check(o *Options) error {
	var errs []error
	need := func(used bool, name, reason string) {
		if used {
			errs = append(errs, fmt.Errorf("driver: has no %s, %s", name, reason))
		}
	}
	need(o.node() && d.Stager == nil, "Stager", "which the node service needs")
	need(d.Provisioner == nil && o.Support.Clones, "Provisioner", "and Options.Support says that it clones volumes")
	need(d.Snapshotter == nil && (d.GroupSnapshotter != nil || d.ListSnapshots != nil || d.Blocks != nil), "Snapshotter", "which GroupSnapshotter, ListSnapshots and Blocks need")
	return errors.Join(errs...)
}

// Provisioner creates, deletes and finds volumes.
type Provisioner interface {
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
}

// Stager makes volumes available on the node that its process is on.
type Stager interface {
	// Stage makes a volume available on this node, and returns in which form; the kit formats, checks, mounts and grows a device, and mounts a
	// directory. Stage itself mounts nothing at StageRequest.Path unless it returns Staged.Mounted (CSI v1.13, "NodeStageVolume").
	Stage(ctx context.Context, req *StageRequest) (*Staged, error)
	// Unstage undoes Stage, and Driver.ReadOnlyDevice, after the kit has unmounted the volume everywhere on this node. It succeeds for a
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
	// Parameters are those of the StorageClass, MutableParameters those of the VolumeAttributesClass. The kit does not check them: a driver refuses
	// parameters that it does not know, with ErrInvalid.
	Parameters, MutableParameters map[string]string
	// Secrets are those of the StorageClass. They must not be stored, logged, or part of an error.
	Secrets Secrets
	// Topology says from where the volume must be reachable; see TopologyRequirement.Choose.
	Topology TopologyRequirement
	// Source is the snapshot or volume whose data the volume starts with; nil for an empty volume. It is a snapshot only where the driver has a
	// Snapshotter, and a volume only where Support.Clones is set.
	Source *Source
}

// DeleteRequest asks to delete a volume.
type DeleteRequest struct {
	// ID is Volume.ID of Create. A volume that the driver did not make may have any id.
	ID string
	// Secrets are those of the StorageClass.
	Secrets Secrets
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
	// VolumeContext is Volume.Context of Create, with what the CO adds to it; PublishContext is that of Attached.
	VolumeContext, PublishContext map[string]string
	// Tokens are those of the pod's service account, by audience, of CSIDrivers with tokenRequests. Kubelets send them with NodePublishVolume alone: Stage has them for an inline volume and with
	// Support.PublishOnly, and Republish has them.
	Tokens map[string]Token
}

// Token is a token of a pod's service account. It prints without its value.
type Token struct {
	// Value is the token itself.
	Value string
	// Expires is when it ends; kubelets send another one before that where the CSIDriver has requiresRepublish.
	Expires time.Time
}

// tokensOf returns the tokens that a kubelet sends: in the secrets where the CSIDriver has serviceAccountTokenInSecrets (KEP-5538), else in the volume context (KEP-1855).
func tokensOf(req *csi.NodePublishVolumeRequest) map[string]Token {
	return parseTokens(cmp.Or(req.GetSecrets()[redact.TokensKey], req.GetVolumeContext()[redact.TokensKey]))
}

// parseTokens reads the JSON of Kubernetes. What is no such JSON has no tokens.
func parseTokens(text string) map[string]Token {
	var sent map[string]struct {
		Token               string
		ExpirationTimestamp time.Time
	}
	if json.Unmarshal([]byte(text), &sent) != nil {
		return nil
	}
	tokens := make(map[string]Token, len(sent))
	for audience, t := range sent {
		tokens[audience] = Token{Value: t.Token, Expires: t.ExpirationTimestamp}
	}
	return tokens
}

// String implements fmt.Stringer without the value.
func (t Token) String() string { return stripped }

// GoString implements fmt.GoStringer without the value.
func (t Token) GoString() string { return stripped }

// MarshalText implements encoding.TextMarshaler without the value, for JSON too.
func (t Token) MarshalText() ([]byte, error) { return []byte(stripped), nil }

// Staged is the form in which Stage made a volume available: exactly one of Device, Directory and Mounted is set.
type Staged struct {
	// Device is the absolute path of a block device. The kit makes a file system on a blank device, checks, mounts and grows it; a raw block volume
	// is published as it is. The kit never formats a device with other contents.
	Device string
	// FSType is the file system of Device where the CO names none; "ext4" if empty.
	FSType string
	// FormatOptions are arguments of the mkfs of FSType, such as "-i", "16384"; see mkfs.ext4(8) and others. They are used once, on a blank device. A StorageClass that has such parameters passes them
	// through Volume.Context.
	FormatOptions []string
	// MountFlags are added to those of the CO. They are in the journal, and must have no secrets.
	MountFlags []string
	// Formatted says that Device has a file system already, as the driver has made or copied it. The kit never formats such a device: what begins with zeros has
	// lost blocks, and the answer is DATA_LOSS. A driver that knows should say it.
	Formatted bool
	// ReadOnly says that Device or Directory refuses writes, because the volume is attached read-only: the kit mounts it read-only whatever the CO asks
	// for. Without it a file system that refuses writes counts as broken: it became read-only after an error. A raw block volume is published read-only only if it is set, or the driver has ReadOnlyDevice.
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

// ValidateRequest asks whether a volume can be used in some ways.
type ValidateRequest struct {
	// ID is Volume.ID of Create.
	ID string
	// Capabilities are the ways in question; at least one.
	Capabilities []Capability
	// Parameters and MutableParameters are those that the volume must have been made with, or changed to since.
	Parameters, MutableParameters map[string]string
	// Secrets are those of the StorageClass.
	Secrets Secrets
}

// Node is a node as NodeGetInfo reports it (CSI v1.13, "NodeGetInfo").
type Node struct {
	// ID is the id by which Attach knows the node: at most 256 bytes.
	ID string
	// MaxVolumes is how many volumes of the driver the node can have; 0 means no limit.
	MaxVolumes int64
	// Topology is the segment of the node; it must have a value for each of Options.TopologyKeys.
	Topology Segments
}

// NodeExpandRequest asks for the new size on a node.
type NodeExpandRequest struct {
	// ID is that of the StageRequest.
	ID string
	// Staged is what Stage returned.
	Staged Staged
	// Path is where the CO sees the volume: its staging or target path. A driver that returned Staged.Mounted grows what is mounted there.
	Path string
	// Size is the range that the size must be in; without limits it is that of the volume.
	Size Range
	// Capability is how the volume is used; nil where the CO does not say.
	Capability *Capability
	// Secrets are those for expansion on nodes.
	Secrets Secrets
	// VolumeContext and PublishContext are those of the StageRequest; the kit's journal has them, CSI not.
	VolumeContext, PublishContext map[string]string
}

// NodeExpanded is the result of ExpandOnNode.
type NodeExpanded struct {
	// Size is the new size in bytes; 0 where the driver does not know it.
	Size int64
}

// UsageRequest asks how much of a volume is used.
type UsageRequest struct {
	// ID is that of the StageRequest.
	ID string
	// Path is the staging or target path in question.
	Path string
	// Staged is what Stage returned.
	Staged Staged
}

// MountRequest is about a mount.
type MountRequest struct {
	// ID is Volume.ID of Create, or any other text.
	ID string
	// Path is an absolute path at which something is mounted.
	Path string
}
