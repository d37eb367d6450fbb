package driverkit

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/driverkit/filesystem"
)

// optionalInterfaces are the names that Options.Without may have.
func optionalInterfaces() []string {
	return []string{
		"Attacher", "BlockMetadataReporter", "CapacityReporter", "Cloner", "Expander", "GroupSnapshotter", "HealthReporter", "Inliner", "Lister", "Modifier",
		"MountGrouper", "MountOwner", "NodeDescriber", "NodeExpander", "Prober", "PublishOnly", "ReadOnlyDevicer", "SnapshotLister", "Snapshotter", "StorageHealthReporter",
		"UsageReporter", "Validator",
	}
}

// Attacher is a Backend whose volumes are attached to nodes before they are staged there. It serves ControllerPublishVolume and
// ControllerUnpublishVolume. Its Get and List set Volume.Nodes.
type Attacher interface {
	// Attach makes a volume reachable from a node, and returns the PublishContext of its StageRequest, which says how the node finds it. For a volume
	// that is attached there already it returns the same again. The kit refuses a second node where the access mode allows one only;
	// a second writer in mode MULTI_NODE_SINGLE_WRITER is the storage system's to refuse.
	// Errors: ErrNotFound for a volume or node, ErrExists where it is attached with other properties, ErrExhausted where the node has no free slot
	// (CSI v1.13, "ControllerPublishVolume").
	Attach(ctx context.Context, req *AttachRequest) (publishContext map[string]string, err error)
	// Detach undoes Attach. When it returns nil the node cannot write any more, whether it runs or not. NotFound of it is success
	// (CSI v1.13, "ControllerUnpublishVolume").
	Detach(ctx context.Context, req *DetachRequest) error
}

// AttachRequest asks to attach a volume to a node.
type AttachRequest struct {
	// ID is Volume.ID of Create.
	ID string
	// Node is Node.ID of NodeGetInfo.
	Node string
	// Capability is how the volume is to be used.
	Capability Capability
	// ReadOnly says that the node must not be able to write.
	ReadOnly bool
	// Secrets are those for attaching.
	Secrets Secrets
	// VolumeContext is Volume.Context of Create, with what the CO adds to it.
	VolumeContext map[string]string
}

// DetachRequest asks to detach a volume from a node.
type DetachRequest struct {
	// ID is that of the AttachRequest.
	ID string
	// Node is that of the AttachRequest; empty for all nodes.
	Node string
	// Secrets are those for attaching.
	Secrets Secrets
}

// Lister is a Backend that can list its volumes. It serves ListVolumes.
type Lister interface {
	// List returns the volumes whose id is greater than after, sorted by id, at most limit of them; limit 0 means all. The kit makes the tokens of
	// pages of the ids, so that a token stays valid when the driver restarts (CSI v1.13, "ListVolumes"). Function Page does this for a slice.
	List(ctx context.Context, after string, limit int) ([]*Volume, error)
}

// CapacityReporter is a Backend that knows its free space. It serves GetCapacity.
type CapacityReporter interface {
	// Capacity returns the free space for volumes as requested; 0 for a topology that the driver does not serve (CSI v1.13, "GetCapacity").
	Capacity(ctx context.Context, req *CapacityRequest) (*Capacity, error)
}

// CapacityRequest asks for free space.
type CapacityRequest struct {
	// Capabilities are those of the wanted volumes; none means any.
	Capabilities []Capability
	// Parameters are those of a StorageClass; they may be empty.
	Parameters map[string]string
	// Topology is the segment in question; nil means anywhere.
	Topology Segments
}

// Capacity is free space in bytes.
type Capacity struct {
	// Available is how much new volumes can have in total.
	Available int64
	// LargestVolume and SmallestVolume are the limits of the size of one volume; 0 means that there is none.
	LargestVolume, SmallestVolume int64
}

// Expander is a Backend whose volumes can grow. It serves ControllerExpandVolume and NodeExpandVolume; on the node the kit grows file systems of
// devices. See Options.OfflineExpansion.
type Expander interface {
	// Expand makes a volume as large as requested, in use or not; a volume that is large enough keeps its size.
	// Errors: ErrNotFound, ErrOutOfRange, ErrInUse (CSI v1.13, "ControllerExpandVolume").
	Expand(ctx context.Context, req *ExpandRequest) (*Expanded, error)
}

// ExpandRequest asks for a larger volume.
type ExpandRequest struct {
	// ID is Volume.ID of Create.
	ID string
	// Size is the range that the new size must be in; see Range.Choose.
	Size Range
	// Capability is how the volume is used; nil where the CO does not say.
	Capability *Capability
	// Secrets are those for expansion.
	Secrets Secrets
}

// Expanded is the result of Expand.
type Expanded struct {
	// Size is the new size in bytes.
	Size int64
	// OnNode says that nodes that use the volume have to call NodeExpandVolume: true for devices with a file system.
	OnNode bool
}

// NodeExpander is an Expander that has work on the node, too, before the kit grows the file system: the kernel must read the size of a device again.
// A Backend that is no Expander does the whole expansion here, of volumes in use.
type NodeExpander interface {
	// ExpandOnNode lets a staged volume have its new size on this node. A repeated call is no error (CSI v1.13, "NodeExpandVolume").
	ExpandOnNode(ctx context.Context, req *NodeExpandRequest) error
}

// NodeExpandRequest asks for the new size on a node.
type NodeExpandRequest struct {
	// ID is that of the StageRequest.
	ID string
	// Staged is what Stage returned.
	Staged Staged
	// Size is the range that the size must be in; without limits it is that of the volume.
	Size Range
	// Secrets are those for expansion on nodes.
	Secrets Secrets
	// VolumeContext and PublishContext are those of the StageRequest; the kit's journal has them, CSI not.
	VolumeContext, PublishContext map[string]string
}

// Modifier is a Backend whose volumes have parameters that can change. It serves ControllerModifyVolume.
type Modifier interface {
	// Modify sets mutable parameters of a volume, all or none of them. A repeated call is no error. Errors: ErrNotFound, ErrInvalid for a parameter
	// that is not known or has a wrong value (CSI v1.13, "ControllerModifyVolume").
	Modify(ctx context.Context, req *ModifyRequest) error
}

// ModifyRequest asks for other parameters.
type ModifyRequest struct {
	// ID is Volume.ID of Create.
	ID string
	// Parameters are all of the VolumeAttributesClass.
	Parameters map[string]string
	// Secrets are those for modification.
	Secrets Secrets
}

// Cloner is a Backend that makes volumes from volumes: CreateRequest.Source may be a volume.
type Cloner interface {
	// ClonesVolumes has no effect; it marks the Backend.
	ClonesVolumes()
}

// Validator is a Backend that knows better than Options.Support in which ways one of its volumes can be used.
type Validator interface {
	// Validate returns nil if a volume can be used as requested. An ErrInvalid says why not, and is no error for the CO (CSI v1.13,
	// "ValidateVolumeCapabilities").
	Validate(ctx context.Context, req *ValidateRequest) error
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

// HealthReporter is a Backend that knows problems of its volumes. It serves ControllerGetVolumeHealth; with Lister, also ControllerListVolumeHealth.
// NodeGetVolumeHealth is served for every Backend, unless Options.Without has "HealthReporter": the kit reports mounts that do not exist any more
// ("NotMounted") and file systems that became read-only after an error ("FileSystemReadOnly") beside what a HealthReporter knows.
type HealthReporter interface {
	// VolumeHealth returns the present problems of a volume; none if it is well. ErrNotFound for a volume that does not exist. It must not block on a
	// device that does not answer (CSI v1.13, "ControllerGetVolumeHealth").
	VolumeHealth(ctx context.Context, req *HealthRequest) ([]Condition, error)
}

// HealthRequest asks for the problems of a volume.
type HealthRequest struct {
	// ID is Volume.ID of Create.
	ID string
	// OnNode says that the problems on this node are asked for: the connection, the device. Else they are those of the storage system.
	OnNode bool
}

// Condition is a problem of a volume (CSI v1.13, "VolumeHealth").
type Condition struct {
	// Severity is Degraded, Inaccessible or DataLoss.
	Severity Severity
	// Reason is one word in CamelCase for programs, Message a sentence for people.
	Reason, Message string
}

// Severity is how bad a Condition is (CSI v1.13, "VolumeHealthErrorType").
type Severity = csi.VolumeHealthErrorType

// The severities of CSI v1.13.
const (
	Degraded     = csi.VolumeHealthErrorType_DEGRADED
	Inaccessible = csi.VolumeHealthErrorType_INACCESSIBLE
	DataLoss     = csi.VolumeHealthErrorType_DATA_LOSS
)

// StorageHealthReporter is a Backend that knows more of the storage that its volumes on a node depend on than Prober can say. It serves
// NodeGetStorageHealth.
type StorageHealthReporter interface {
	// StorageHealth returns the present problems of the storage system as this node sees it; none if it is well. It must be quick
	// (CSI v1.13, "NodeGetStorageHealth").
	StorageHealth(ctx context.Context) []StorageCondition
}

// StorageCondition is a problem of a storage system (CSI v1.13, "StorageBackendHealth").
type StorageCondition struct {
	// Severity is StorageDegraded or StorageUnreachable.
	Severity StorageSeverity
	// Reason is one word in CamelCase for programs, Message a sentence for people.
	Reason, Message string
}

// StorageSeverity is how bad a StorageCondition is (CSI v1.13, "StorageHealthErrorType").
type StorageSeverity = csi.StorageHealthErrorType

// The severities of problems of storage systems of CSI v1.13.
const (
	StorageDegraded    = csi.StorageHealthErrorType_STORAGE_DEGRADED
	StorageUnreachable = csi.StorageHealthErrorType_STORAGE_UNREACHABLE
)

// UsageReporter is a Backend that knows better than the file system at the path of a volume how much of it is used: that of volumes that are directories
// of one file system.
type UsageReporter interface {
	// Usage measures a volume on this node. nil leaves it to the kit, which asks the file system, or the device for its size
	// (CSI v1.13, "NodeGetVolumeStats").
	Usage(ctx context.Context, req *UsageRequest) (*filesystem.Usage, error)
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

// Inliner is a Backend with inline volumes: they are part of a pod, live as long as it, and are created, used and deleted on its node (KEP-596).
type Inliner interface {
	// CreateInline makes the volume of a pod under the id that the CO gives. A repeated call is no error. Stage, Unstage and, without secrets, Delete
	// follow as for other volumes. Errors: ErrInvalid for an attribute that is not known, ErrExhausted.
	CreateInline(ctx context.Context, req *InlineRequest) error
}

// InlineRequest asks for an inline volume.
type InlineRequest struct {
	// ID is the id that the volume will have.
	ID string
	// Attributes are those of the pod's volume. Users choose them: they must give no more than their author may have.
	Attributes map[string]string
	// Pod is the pod of the volume.
	Pod Pod
	// Capability is how the volume is to be used.
	Capability Capability
	// Secrets are those of the pod's volume.
	Secrets Secrets
}

// Pod is the pod that a volume is made for. Its fields are empty unless the CSIDriver object has podInfoOnMount.
type Pod struct {
	// Namespace, Name and UID are those of the object.
	Namespace, Name, UID string
	// ServiceAccount is the name of the pod's service account.
	ServiceAccount string
}

// MountGrouper is a Backend that gives the files of a volume to a group, Capability.MountGroup: a CO that sees that leaves it to the driver.
type MountGrouper interface {
	// MountsGroup has no effect; it marks the Backend.
	MountsGroup()
}

// MountOwner is a Backend that recognises the mounts of its volumes. The kit asks it before it unmounts at a path that its journal does not know for the
// volume, and refuses with FAILED_PRECONDITION to unmount what is not the volume's. Without it the kit takes the CO's word, and unmounts: the journal may
// be lost, or another driver may have mounted the volume.
type MountOwner interface {
	// OwnsMount reports whether the mount at a path shows the volume; false for a volume that does not exist.
	OwnsMount(ctx context.Context, req *MountRequest) (bool, error)
}

// MountRequest asks whose a mount is.
type MountRequest struct {
	// ID is Volume.ID of Create, or any other text.
	ID string
	// Path is an absolute path at which something is mounted.
	Path string
}

// NodeDescriber is a Backend that finds out what its node is, for instance from a metadata service, where Options cannot say. NodeGetInfo calls it
// each time.
type NodeDescriber interface {
	// DescribeNode completes what Options say about the node.
	DescribeNode(ctx context.Context, node *Node) error
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

// ReadOnlyDevicer is a Backend that can make a second device of a raw block volume, which refuses writes. It serves NodePublishVolume with readonly for
// volumes that are staged for writing. Without it the kit refuses that with INVALID_ARGUMENT: a read-only mount of a device's node does not keep anybody
// from writing to the device.
type ReadOnlyDevicer interface {
	// ReadOnlyDevice returns the absolute path of the second device of a volume that is staged for writing. It is called for each read-only publication,
	// in any number and again with the same request, and returns the same device. req is that of Stage, with ReadOnly set, and the secrets and contexts
	// of NodePublishVolume. Unstage detaches this device, too, if there is one: the kit calls it also when ReadOnlyDevice failed or its process died.
	ReadOnlyDevice(ctx context.Context, req *StageRequest) (device string, err error)
}

// PublishOnly is a Backend whose volumes are not staged once per node, but made available at each path of a workload, such as many network file
// systems: NodePublishVolume calls Stage with the workload's path, NodeUnpublishVolume calls Unstage.
type PublishOnly interface {
	// PublishesOnly has no effect; it marks the Backend.
	PublishesOnly()
}

// Prober is a Backend that can check what it depends on, such as its credentials and the connection to its storage system. The CO begins to call the driver when the check has succeeded once. After
// that its result is in NodeGetStorageHealth and /readyz alone: an outage of the storage system must not have drivers restarted, and what can be done without it must go on.
type Prober interface {
	// Probe returns nil when calls can be served. It must be quick: probes wait for it (CSI v1.13, "Probe").
	Probe(ctx context.Context) error
}
