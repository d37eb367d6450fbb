package snapshotcontroller

import (
	"errors"
	"flag"
	"time"

	"github.com/longshore-csi/longshore/csikit/component"
	"github.com/longshore-csi/longshore/csikit/flagset"
)

// GateGroups is the feature gate of the work on group snapshots, as long as the server has their kinds.
const GateGroups = "CSIVolumeGroupSnapshot"

// Options configure one snapshot controller. NewOptions returns the defaults.
type Options struct {
	// Options are the flags that it shares with other components.
	component.Options

	// Workers is the number of objects of each queue that are processed concurrently.
	Workers int
	// Resync is the interval in which every object is reconciled without a change. 0: never.
	Resync time.Duration
	// CRDInterval is the longest interval in which the kinds of snapshots and group snapshots are looked for.
	CRDInterval time.Duration
	// Distributed labels contents with the node whose csi-snapshotter is in charge of the volume.
	Distributed bool
	// PreventModeConversion records the mode of the volume on contents, by which csi-provisioner refuses to restore to another mode.
	PreventModeConversion bool
}

// NewOptions returns the defaults.
func NewOptions() Options {
	return Options{
		Options: component.NewOptions(map[string]flagset.Gate{GateGroups: {Default: true, Stage: flagset.GA}}),
		Workers: 10, Resync: 15 * time.Minute, CRDInterval: 30 * time.Second, PreventModeConversion: true,
	}
}

// AddFlags registers all flags on fs, except --version and those of the log, which every binary has (csikit/command). The values that the
// fields have at that moment are the defaults.
func (o *Options) AddFlags(fs *flag.FlagSet) {
	o.Options.AddFlags(fs)
	fs.IntVar(&o.Workers, "worker-threads", o.Workers, "number of objects of each queue that are processed concurrently")
	fs.DurationVar(&o.Resync, "resync-period", o.Resync, "interval in which every object is reconciled without a change; 0: never")
	fs.DurationVar(&o.CRDInterval, "retry-crd-interval-max", o.CRDInterval,
		"maximum interval in which the kinds of snapshots, and those of group snapshots, are looked for while they are not installed")
	fs.BoolVar(&o.Distributed, "enable-distributed-snapshotting", o.Distributed,
		"label each content with the node whose csi-snapshotter is in charge of its volume")
	fs.BoolVar(&o.PreventModeConversion, "prevent-volume-mode-conversion", o.PreventModeConversion,
		"record the mode of the volume on each content, by which csi-provisioner refuses to restore to another mode")
}

// Validate reports everything that is wrong at once, each error naming the flag and the rule.
func (o *Options) Validate() error {
	return errors.Join(
		o.Options.Validate(),
		flagset.Require(o.Workers >= 1, "worker-threads", o.Workers, "must be at least 1"),
		flagset.Require(o.Resync >= 0, "resync-period", o.Resync, "must not be negative"),
		flagset.Require(o.CRDInterval >= time.Second, "retry-crd-interval-max", o.CRDInterval, "must be at least 1s"),
	)
}
