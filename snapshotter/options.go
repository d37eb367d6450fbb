package snapshotter

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/sidecar"
	"github.com/longshore-csi/longshore/snapshotter/internal/controller"
)

// GateGroups is a feature gate: group snapshots (KEP-3476).
const GateGroups = "CSIVolumeGroupSnapshot"

// EnvNodeName is the environment variable with the name of the node that --node-deployment works for.
const EnvNodeName = "NODE_NAME"

const (
	// minUUID is the smallest number of characters of a UID in a name: with it, two of 10,000 snapshots share a name once in a hundred clusters.
	minUUID = 8
	// maxUUID is how many characters a UID has, without dashes.
	maxUUID = 32
)

// Options configure one snapshotter. NewOptions returns the defaults.
type Options struct {
	// Options are the flags that it shares with other sidecars.
	sidecar.Options

	// Workers is the number of contents of snapshots processed concurrently, and separately of contents of group snapshots.
	Workers int
	// Resync is the interval in which every content is reconciled without a change. 0: never.
	Resync time.Duration
	// OrphanInterval is the interval in which snapshots of the driver that no content names are looked for by ListSnapshots. 0: never.
	OrphanInterval time.Duration
	// SnapshotNamePrefix begins the name that the driver gets for a snapshot. As many characters of the VolumeSnapshot's UID follow as
	// SnapshotNameUUIDLength says: 8 to 32 without dashes, or with -1 the whole UID with dashes.
	SnapshotNamePrefix     string
	SnapshotNameUUIDLength int
	// GroupSnapshotNamePrefix and GroupSnapshotNameUUIDLength are the same for group snapshots, with the VolumeGroupSnapshot's UID.
	GroupSnapshotNamePrefix     string
	GroupSnapshotNameUUIDLength int
	// ExtraCreateMetadata adds the names of the objects to the parameters of a new snapshot.
	ExtraCreateMetadata bool
	// NodeDeployment restricts the instance to the contents of the node NodeName.
	NodeDeployment bool
	// NodeName is the name of that node; NewOptions takes it from the environment variable EnvNodeName.
	NodeName string
}

// NewOptions returns the defaults.
func NewOptions() Options {
	o := Options{
		Options:                     sidecar.NewOptions(map[string]flagset.Gate{GateGroups: {Default: true, Stage: flagset.GA}}),
		Workers:                     10,
		Resync:                      15 * time.Minute,
		SnapshotNamePrefix:          "snapshot",
		SnapshotNameUUIDLength:      controller.WholeUUID,
		GroupSnapshotNamePrefix:     "groupsnapshot",
		GroupSnapshotNameUUIDLength: controller.WholeUUID,
		NodeName:                    os.Getenv(EnvNodeName),
	}
	o.CSI.Timeout = time.Minute
	return o
}

// AddFlags registers all flags on fs, except --version and those of the log, which every binary
// has (csikit/command). The values that the fields have at that moment are the defaults.
func (o *Options) AddFlags(fs *flag.FlagSet) {
	flagset.AddFlags(fs, &o.CSI, &o.Options)
	fs.IntVar(&o.Workers, "worker-threads", o.Workers, "number of snapshots processed concurrently, and separately of group snapshots")
	fs.DurationVar(&o.Resync, "resync-period", o.Resync, "interval in which every content is reconciled without a change; 0: never")
	fs.DurationVar(&o.OrphanInterval, "orphan-report-interval", o.OrphanInterval,
		"interval in which all snapshots of the driver are listed, and those that no content names are counted in a metric and logged; none is deleted; 0: never")
	fs.StringVar(&o.SnapshotNamePrefix, "snapshot-name-prefix", o.SnapshotNamePrefix, "`prefix` of the name that the driver gets for a snapshot; the UID of the VolumeSnapshot follows")
	fs.IntVar(&o.SnapshotNameUUIDLength, "snapshot-name-uuid-length", o.SnapshotNameUUIDLength, "characters of the UID, without dashes, in the name of a snapshot: 8 to 32; -1: the whole UID with dashes")
	fs.StringVar(&o.GroupSnapshotNamePrefix, "groupsnapshot-name-prefix", o.GroupSnapshotNamePrefix, "`prefix` of the name that the driver gets for a group snapshot; the UID of the VolumeGroupSnapshot follows")
	fs.IntVar(&o.GroupSnapshotNameUUIDLength, "groupsnapshot-name-uuid-length", o.GroupSnapshotNameUUIDLength, "characters of the UID, without dashes, in the name of a group snapshot: 8 to 32; -1: the whole UID with dashes")
	fs.BoolVar(&o.ExtraCreateMetadata, "extra-create-metadata", o.ExtraCreateMetadata,
		"add names and namespace of snapshot and content, such as csi.storage.k8s.io/volumesnapshot/name, to the parameters of a new snapshot")
	fs.BoolVar(&o.NodeDeployment, "node-deployment", o.NodeDeployment, "process only contents of the node of this instance, whose name is in $"+EnvNodeName)
}

// Validate reports everything that is wrong at once, each error naming the flag and the rule.
func (o *Options) Validate() error {
	errs := []error{
		flagset.Validate(&o.CSI, &o.Options),
		flagset.Require(o.Workers >= 1, "worker-threads", o.Workers, "must be at least 1"),
		flagset.Require(o.Resync >= 0, "resync-period", o.Resync, "must not be negative"),
		flagset.Require(o.OrphanInterval >= 0, "orphan-report-interval", o.OrphanInterval, "must not be negative"),
	}
	for _, n := range []struct {
		flag, prefix string
		length       int
	}{
		{"snapshot-name", o.SnapshotNamePrefix, o.SnapshotNameUUIDLength},
		{"groupsnapshot-name", o.GroupSnapshotNamePrefix, o.GroupSnapshotNameUUIDLength},
	} {
		if n.prefix == "" {
			errs = append(errs, fmt.Errorf("--%s-prefix=: must not be empty", n.flag))
		}
		if n.length != controller.WholeUUID && (n.length < minUUID || n.length > maxUUID) {
			errs = append(errs, fmt.Errorf("--%s-uuid-length=%d: must be -1 or from %d to %d: with fewer characters, snapshots would share names", n.flag, n.length, minUUID, maxUUID))
		}
	}
	if o.NodeDeployment {
		if o.NodeName == "" {
			errs = append(errs, fmt.Errorf("--node-deployment=true: the environment variable %s must be the name of the node", EnvNodeName))
		}
		if o.LeaderElection.Enabled {
			errs = append(errs, errors.New("--node-deployment=true: must not be combined with --leader-election, as each node has an instance that works"))
		}
	}
	return errors.Join(errs...)
}
