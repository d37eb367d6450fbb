package csitest

import (
	"maps"
	"slices"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

const (
	// DefaultName is the name of a driver when Options.Name is empty.
	DefaultName = "test.csi.longshore.example"
	// DefaultNodeID is the ID of the driver's node when Options.NodeID is empty.
	DefaultNodeID = "node-1"
	// DefaultCapacity is the capacity of the driver when Options.Capacity is zero: 1 TiB.
	DefaultCapacity = int64(1) << 40
	// DefaultVolumeSize is the size of a volume whose request has no capacity range: 1 GiB.
	DefaultVolumeSize = int64(1) << 30
)

// Options describes a driver. The zero value is a driver that can do with volumes
// all that this package implements, without topology. A driver with snapshots has
// AllSnapshots among its Controller capabilities, one with group snapshots has AllGroupController.
type Options struct {
	// Name and Version are what GetPluginInfo answers. Version defaults to "v1".
	Name, Version string
	// NodeID is the ID of the node that the node service runs on.
	NodeID string
	// Nodes lists the IDs of further nodes that exist. If it is empty, every
	// node exists; otherwise the controller answers NOT_FOUND for others.
	Nodes []string
	// Topology is the segment of the node. If it is set, the driver announces
	// accessibility constraints and volumes have a topology.
	Topology map[string]string
	// MaxVolumesPerNode is reported by NodeGetInfo and enforced by the
	// controller. Zero means no limit.
	MaxVolumesPerNode int64
	// Capacity is the sum of the sizes of all volumes that is allowed, in bytes.
	Capacity int64
	// MutableParameters lists the keys that CreateVolume and
	// ControllerModifyVolume accept as mutable parameters. Nil means any.
	MutableParameters []string
	// TargetPaths makes NodePublishVolume create the target path, an empty
	// directory or file, and NodeUnpublishVolume remove it, for callers that
	// check the file system.
	TargetPaths bool
	// OfflineExpansion announces that volumes are expanded offline only, and makes ControllerExpandVolume refuse volumes that are in use.
	OfflineExpansion bool
	// SnapshotReadyAfter is the number of answers that report a new snapshot as
	// not ready to use, the first one included. Negative: all.
	SnapshotReadyAfter int
	// NoCreationTime leaves the creation time of snapshots out, although it is REQUIRED.
	NoCreationTime bool
	// SnapshotTopology announces SNAPSHOT_ACCESSIBILITY_CONSTRAINTS: a snapshot is accessible from where its volume is, and volumes are
	// made of it there only.
	SnapshotTopology bool
	// RestoredInUse makes the deletion of a snapshot return FAILED_PRECONDITION
	// while a volume that was restored from it exists.
	RestoredInUse bool
	// Plugin, Controller, GroupController and Node are the capabilities that are announced. Nil
	// means AllController and AllNode, no group controller, and a plugin with these services;
	// an empty list means none. A call that needs a capability that is not announced returns
	// UNIMPLEMENTED.
	Plugin          []csi.PluginCapability_Service_Type
	Controller      []csi.ControllerServiceCapability_RPC_Type
	GroupController []csi.GroupControllerServiceCapability_RPC_Type
	Node            []csi.NodeServiceCapability_RPC_Type
}

// AllController returns the controller capabilities that are implemented, without AllSnapshots.
func AllController() []csi.ControllerServiceCapability_RPC_Type {
	return []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_READONLY,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES,
		csi.ControllerServiceCapability_RPC_GET_VOLUME,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_MODIFY_VOLUME,
	}
}

// AllSnapshots returns the controller capabilities for snapshots that are implemented.
func AllSnapshots() []csi.ControllerServiceCapability_RPC_Type {
	return []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		csi.ControllerServiceCapability_RPC_GET_SNAPSHOT,
	}
}

// AllGroupController returns the group controller capabilities that are implemented.
func AllGroupController() []csi.GroupControllerServiceCapability_RPC_Type {
	return []csi.GroupControllerServiceCapability_RPC_Type{csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT}
}

// AllNode returns the node capabilities that are implemented.
func AllNode() []csi.NodeServiceCapability_RPC_Type {
	return []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}
}

// Driver is the instance of the driver on one node. It is safe for concurrent use.
type Driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedGroupControllerServer
	csi.UnimplementedNodeServer

	nodeID   string
	topology map[string]string
	*backend
}

var (
	_ csi.IdentityServer        = (*Driver)(nil)
	_ csi.ControllerServer      = (*Driver)(nil)
	_ csi.GroupControllerServer = (*Driver)(nil)
	_ csi.NodeServer            = (*Driver)(nil)
)

// backend is the state that the instances of a driver on all nodes share.
type backend struct {
	mu         sync.Mutex
	o          Options
	notReady   bool
	volumes    map[string]*volume
	snapshots  map[string]*Snapshot
	groups     map[string]*GroupSnapshot
	violations []string
	overlaps   []string
	calls      []*Call
	running    map[string]int // calls by what they create or delete
	faults     []*fault
	pageSize   int // see LimitPages
}

// New returns a driver without volumes and snapshots.
func New(o Options) *Driver {
	o = o.withDefaults()
	return &Driver{
		nodeID:   o.NodeID,
		topology: maps.Clone(o.Topology),
		backend: &backend{
			o: o, volumes: map[string]*volume{}, snapshots: map[string]*Snapshot{}, groups: map[string]*GroupSnapshot{}, running: map[string]int{},
		},
	}
}

func (o Options) withDefaults() Options {
	setDefault(&o.Name, DefaultName)
	setDefault(&o.Version, "v1")
	setDefault(&o.NodeID, DefaultNodeID)
	setDefault(&o.Capacity, DefaultCapacity)
	if o.Plugin == nil {
		o.Plugin = []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE}
		if len(o.GroupController) > 0 {
			o.Plugin = append(o.Plugin, csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE)
		}
		if len(o.Topology) > 0 {
			o.Plugin = append(o.Plugin, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS)
		}
		if o.SnapshotTopology {
			o.Plugin = append(o.Plugin, csi.PluginCapability_Service_SNAPSHOT_ACCESSIBILITY_CONSTRAINTS)
		}
	}
	if o.Controller == nil {
		o.Controller = AllController()
	}
	if o.Node == nil {
		o.Node = AllNode()
	}
	return o
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// OnNode returns the instance of the same driver on another node: with the same
// volumes, faults and call log, but a node ID and a topology of its own.
func (d *Driver) OnNode(nodeID string, topology map[string]string) *Driver {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.o.Nodes) > 0 && !slices.Contains(d.o.Nodes, nodeID) {
		d.o.Nodes = append(slices.Clone(d.o.Nodes), nodeID)
	}
	return &Driver{nodeID: nodeID, topology: maps.Clone(topology), backend: d.backend}
}

// Register registers the driver's services on a gRPC server. Faults and the
// call log work there too.
func (d *Driver) Register(s grpc.ServiceRegistrar) {
	for _, desc := range descs() {
		s.RegisterService(d.wrap(desc), d)
	}
}

func descs() []*grpc.ServiceDesc {
	return []*grpc.ServiceDesc{&csi.Identity_ServiceDesc, &csi.Controller_ServiceDesc, &csi.GroupController_ServiceDesc, &csi.Node_ServiceDesc}
}

// SetReady sets whether Probe reports the driver ready. A new driver is ready.
func (d *Driver) SetReady(ready bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.notReady = !ready
}

// SetController replaces the announced controller capabilities, as the update
// of a driver does.
func (d *Driver) SetController(capabilities ...csi.ControllerServiceCapability_RPC_Type) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.o.Controller = capabilities
}

// SetGroupController replaces the announced group controller capabilities, as the update of a driver does.
func (d *Driver) SetGroupController(capabilities ...csi.GroupControllerServiceCapability_RPC_Type) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.o.GroupController = capabilities
}

// SetNode replaces the announced node capabilities, as the update of a driver does.
func (d *Driver) SetNode(capabilities ...csi.NodeServiceCapability_RPC_Type) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.o.Node = capabilities
}

func (b *backend) hasController(c csi.ControllerServiceCapability_RPC_Type) bool {
	return slices.Contains(b.o.Controller, c)
}

func (b *backend) hasNode(c csi.NodeServiceCapability_RPC_Type) bool {
	return slices.Contains(b.o.Node, c)
}

func (b *backend) nodeExists(id string) bool {
	return len(b.o.Nodes) == 0 || id == b.o.NodeID || slices.Contains(b.o.Nodes, id)
}
