package snapshotcontroller

import (
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/longshore-csi/longshore/csikit/flagset"
)

// Names of the feature gates.
const (
	// GateGroups is the work on group snapshots, as long as the server has their kinds.
	GateGroups = "CSIVolumeGroupSnapshot"
	// GateReleaseLeader is without effect: the Lease is always released when the process ends.
	GateReleaseLeader = "ReleaseLeaderElectionOnExit"
)

// Options configure one snapshot controller. NewOptions returns the defaults.
type Options struct {
	// Kube is the connection to the API server.
	Kube flagset.Kube
	// LeaderElection lets one of several instances work.
	LeaderElection flagset.LeaderElection
	// HTTP is where metrics, health and state are served.
	HTTP flagset.HTTP
	// Retry is the backoff after failures, per object.
	Retry flagset.Retry
	// Features are the feature gates.
	Features flagset.FeatureGates

	// Workers is the number of objects of each queue that are processed concurrently.
	Workers int
	// Resync is the interval in which every object is reconciled without a change. 0: never.
	Resync time.Duration
	// KubeTimeout is the deadline of each call to the API server.
	KubeTimeout time.Duration
	// CRDInterval is the longest interval in which the kinds of snapshots and group snapshots are looked for.
	CRDInterval time.Duration
	// Distributed labels contents with the node whose csi-snapshotter is in charge of the volume.
	Distributed bool
	// PreventModeConversion records the mode of the volume on contents, by which csi-provisioner refuses to restore to another mode.
	PreventModeConversion bool

	ignored flagset.Ignored
}

// NewOptions returns the defaults.
func NewOptions() Options {
	return Options{
		Kube: flagset.NewKube(), LeaderElection: flagset.NewLeaderElection(), HTTP: flagset.NewHTTP(), Retry: flagset.NewRetry(),
		Features: flagset.NewFeatureGates(map[string]flagset.Gate{
			GateGroups:        {Default: true, Stage: flagset.GA},
			GateReleaseLeader: {Default: false, Stage: flagset.Alpha},
		}),
		Workers: 10, Resync: 15 * time.Minute, KubeTimeout: 30 * time.Second, CRDInterval: 30 * time.Second, PreventModeConversion: true,
	}
}

func (o *Options) groups() []flagset.Group {
	return []flagset.Group{&o.Kube, &o.LeaderElection, &o.HTTP, &o.Retry, &o.Features}
}

// AddFlags registers all flags on fs, except --version and those of the log, which every binary has (csikit/command). The values that the
// fields have at that moment are the defaults.
func (o *Options) AddFlags(fs *flag.FlagSet) {
	flagset.AddFlags(fs, o.groups()...)
	fs.IntVar(&o.Workers, "worker-threads", o.Workers, "number of objects of each queue that are processed concurrently")
	fs.DurationVar(&o.Resync, "resync-period", o.Resync, "interval in which every object is reconciled without a change; 0: never")
	fs.DurationVar(&o.KubeTimeout, "kube-api-timeout", o.KubeTimeout, "deadline of each call to the API server")
	fs.DurationVar(&o.CRDInterval, "retry-crd-interval-max", o.CRDInterval,
		"maximum interval in which the kinds of snapshots, and those of group snapshots, are looked for while they are not installed")
	fs.BoolVar(&o.Distributed, "enable-distributed-snapshotting", o.Distributed,
		"label each content with the node whose csi-snapshotter is in charge of its volume")
	fs.BoolVar(&o.PreventModeConversion, "prevent-volume-mode-conversion", o.PreventModeConversion,
		"record the mode of the volume on each content, by which csi-provisioner refuses to restore to another mode")
	o.ignored.AutoMaxProcs(fs)
}

// Validate reports everything that is wrong at once, each error naming the flag and the rule.
func (o *Options) Validate() error {
	errs := []error{flagset.Validate(o.groups()...)}
	if o.Workers < 1 {
		errs = append(errs, fmt.Errorf("--worker-threads=%d: must be at least 1", o.Workers))
	}
	if o.Resync < 0 {
		errs = append(errs, fmt.Errorf("--resync-period=%v: must not be negative", o.Resync))
	}
	if o.KubeTimeout <= 0 {
		errs = append(errs, fmt.Errorf("--kube-api-timeout=%v: must be greater than 0", o.KubeTimeout))
	}
	if o.CRDInterval < time.Second {
		errs = append(errs, fmt.Errorf("--retry-crd-interval-max=%v: must be at least 1s", o.CRDInterval))
	}
	return errors.Join(errs...)
}

// Warnings returns a text for each flag that was given although it is deprecated or without effect.
func (o *Options) Warnings() []string {
	warnings := flagset.Warnings(&o.HTTP, &o.Features, &o.ignored)
	if o.Features.Explicit(GateReleaseLeader) {
		warnings = append(warnings, "--feature-gates: "+GateReleaseLeader+" has no effect: the Lease is always released on exit")
	}
	return warnings
}
