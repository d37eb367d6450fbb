package provisioner

import (
	"errors"
	"flag"
	"os"
	"time"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/sidecar"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
	"github.com/longshore-csi/longshore/topology"
)

// Names of the feature gates.
const (
	// GateTopology sends topology requirements to drivers that know topology.
	GateTopology = "Topology"
	// GateVolumeAttributesClass sends the parameters of VolumeAttributesClasses to drivers.
	GateVolumeAttributesClass = "VolumeAttributesClass"
	// GateCrossNamespace makes volumes from data sources in other namespaces, where a ReferenceGrant allows that.
	GateCrossNamespace = "CrossNamespaceVolumeDataSource"
)

// DefaultTimeout is the deadline of one call to the driver.
const DefaultTimeout = 10 * time.Second

// Options configure one provisioner. NewOptions returns the defaults.
type Options struct {
	// Options are the flags that it shares with other sidecars. Retry.Max is also the pause after a request which the driver called invalid.
	sidecar.Options

	// VolumeNamePrefix is the first part of the names of volumes and PersistentVolumes.
	VolumeNamePrefix string
	// VolumeNameUUIDLength cuts the claim's UID in names; -1 takes all of it.
	VolumeNameUUIDLength int
	// Workers is the number of claims, and separately of volume deletions, processed concurrently.
	Workers int

	// Topology says which topology is sent to drivers that know topology.
	Topology topology.Policy

	// ExtraCreateMetadata adds the names of claim and volume to the parameters of CreateVolume.
	ExtraCreateMetadata bool
	// DefaultFSType is the file system of volumes whose StorageClass names none.
	DefaultFSType string
	// ControllerPublishReadOnly marks volumes read-only whose only access mode is ReadOnlyMany.
	ControllerPublishReadOnly bool
	// PreventVolumeModeConversion keeps snapshots from being restored in another volume mode.
	PreventVolumeModeConversion bool

	// Capacity configures the publication of CSIStorageCapacity objects.
	Capacity CapacityOptions
	// Node configures an instance that runs on each node, and provisions for that node alone.
	Node NodeOptions
	// CloningProtectionWorkers is the number of workers that remove protection finalizers from clone and snapshot sources.
	CloningProtectionWorkers int
	// SnapshotSweepInterval is the pause between two searches for leftover finalizers on snapshots.
	SnapshotSweepInterval time.Duration
}

// NewOptions returns the defaults. The name of the node is that of the environment.
func NewOptions() Options {
	o := Options{
		Options: sidecar.NewOptions(map[string]flagset.Gate{
			GateTopology:              {Default: true, Stage: flagset.GA},
			GateVolumeAttributesClass: {Default: true, Stage: flagset.GA},
			GateCrossNamespace:        {Stage: flagset.Alpha},
		}),
		VolumeNamePrefix:            "pvc",
		VolumeNameUUIDLength:        -1,
		Workers:                     100,
		Topology:                    topology.DefaultPolicy(),
		PreventVolumeModeConversion: true,
		Capacity:                    newCapacityOptions(),
		Node:                        NodeOptions{Name: os.Getenv(EnvNodeName), Immediate: true, BaseDelay: 20 * time.Second, MaxDelay: 60 * time.Second},
		CloningProtectionWorkers:    1,
		SnapshotSweepInterval:       5 * time.Minute,
	}
	o.CSI.Timeout = DefaultTimeout
	return o
}

// AddFlags registers all flags on fs, but for those that every binary has: logging and --version. The values that the fields have at that moment are the defaults.
func (o *Options) AddFlags(fs *flag.FlagSet) {
	flagset.AddFlags(fs, &o.CSI, &o.Options)
	o.addVolumeFlags(fs)
	o.addTopologyFlags(fs)
	o.Capacity.addFlags(fs)
	o.Node.addFlags(fs)
}

// addVolumeFlags registers the flags about volumes and the work on them.
func (o *Options) addVolumeFlags(fs *flag.FlagSet) {
	fs.StringVar(&o.VolumeNamePrefix, "volume-name-prefix", o.VolumeNamePrefix,
		"`prefix` of the names of volumes and PersistentVolumes")
	fs.IntVar(&o.VolumeNameUUIDLength, "volume-name-uuid-length", o.VolumeNameUUIDLength,
		"number of characters of the claim's UID in volume names, without dashes, 1 to 32; -1: the whole UID with dashes")
	fs.IntVar(&o.Workers, "worker-threads", o.Workers, "number of claims, and separately of volume deletions, processed concurrently")
	fs.BoolVar(&o.ExtraCreateMetadata, "extra-create-metadata", o.ExtraCreateMetadata,
		"add the names of claim, namespace and PersistentVolume to the parameters of CreateVolume")
	fs.StringVar(&o.DefaultFSType, "default-fstype", o.DefaultFSType, "file system `type` of volumes whose StorageClass names none")
	fs.BoolVar(&o.ControllerPublishReadOnly, "controller-publish-readonly", o.ControllerPublishReadOnly,
		"mark PersistentVolumes read-only whose only access mode is ReadOnlyMany")
	fs.BoolVar(&o.PreventVolumeModeConversion, "prevent-volume-mode-conversion", o.PreventVolumeModeConversion,
		"refuse to restore a snapshot in another volume mode than that of its source, unless its content allows it")
	fs.IntVar(&o.CloningProtectionWorkers, "cloning-protection-threads", o.CloningProtectionWorkers,
		"workers that remove protection finalizers from clone and snapshot sources")
	fs.DurationVar(&o.SnapshotSweepInterval, "snapshot-orphan-sweep-interval", o.SnapshotSweepInterval,
		"pause between two searches for leftover protection finalizers on snapshots; 0: never")
}

// addTopologyFlags registers the flags about topology.
func (o *Options) addTopologyFlags(fs *flag.FlagSet) {
	t := &o.Topology
	fs.BoolVar(&t.Strict, "strict-topology", t.Strict,
		"late binding: request only the segment of the selected node")
	fs.BoolVar(&t.Immediate, "immediate-topology", t.Immediate,
		"immediate binding without allowedTopologies: request all segments of the cluster; false: send no topology")
	fs.TextVar(&t.Spread, "topology-spread", t.Spread,
		"immediate binding: prefer a segment by the name of the claim, for `claims` any-name, statefulsets or off")
	fs.BoolVar(&t.FilterAllowed, "topology-filter-allowed", t.FilterAllowed,
		"request the segments of the nodes that allowedTopologies permit, with all keys of the nodes, instead of allowedTopologies themselves")
	fs.IntVar(&t.MaxSegments, "topology-max-segments", t.MaxSegments, "maximum number of segments in one request, the preferred ones first; 0: no limit")
}

// Validate reports everything that is wrong at once, each error naming the flag and the rule.
func (o *Options) Validate() error {
	return errors.Join(
		flagset.Validate(&o.CSI, &o.Options), o.naming().Validate(), o.validateNode(), o.Capacity.validate(),
		flagset.Require(o.Workers >= 1, "worker-threads", o.Workers, "must be at least 1"),
		flagset.Require(o.CloningProtectionWorkers >= 1, "cloning-protection-threads", o.CloningProtectionWorkers, "must be at least 1"),
		flagset.Require(o.Topology.MaxSegments >= 0, "topology-max-segments", o.Topology.MaxSegments, "must not be negative"),
		flagset.Require(o.SnapshotSweepInterval >= 0, "snapshot-orphan-sweep-interval", o.SnapshotSweepInterval, "must not be negative"),
	)
}

// naming returns how volumes are called.
func (o *Options) naming() volume.Naming {
	return volume.Naming{Prefix: o.VolumeNamePrefix, UUIDLength: o.VolumeNameUUIDLength}
}
