package attacher

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"time"

	"github.com/longshore-csi/longshore/csikit/flagset"
)

// Names of the feature gates.
const (
	// GateErrorCode writes the gRPC code of a failure into the status, where the kubelet looks
	// for ResourceExhausted to find out that the node's number of volumes has changed.
	GateErrorCode = "MutableCSINodeAllocatableCount"
	// GateReleaseLeader is without effect: the Lease is always released when the process ends.
	GateReleaseLeader = "ReleaseLeaderElectionOnExit"
)

// Options configure one attacher. NewOptions returns the defaults.
type Options struct {
	// CSI is the address of the driver and the deadline of calls to it.
	CSI flagset.CSI
	// Kube is the connection to the API server.
	Kube flagset.Kube
	// LeaderElection lets one of several instances work.
	LeaderElection flagset.LeaderElection
	// HTTP is where metrics, health and state are served.
	HTTP flagset.HTTP
	// Retry is the backoff after failures, per VolumeAttachment.
	Retry flagset.Retry
	// Features are the feature gates.
	Features flagset.FeatureGates
	// Secrets limits which secrets are read for calls to the driver.
	Secrets flagset.Secrets

	// KubeTimeout is the deadline of each call to the API server.
	KubeTimeout time.Duration
	// Workers is the maximum number of concurrent attach operations, and separately of detach operations. Those of one node are at most
	// as many as workers are then free: half if no other node needs one.
	Workers int
	// Resync is the interval in which every object is reconciled without a change. 0: never.
	Resync time.Duration
	// ReconcileSync is the interval between two comparisons with the driver's ListVolumes. 0: never.
	ReconcileSync time.Duration
	// NodeRetry is the pause before a node without the driver is checked again. It doubles up to Retry.Max. The
	// registration of the driver ends it.
	NodeRetry time.Duration
	// MaxEntries is the page size of ListVolumes. 0: the driver's choice.
	MaxEntries int
	// DefaultFSType is the file system of volumes that name none.
	DefaultFSType string
	// MaxGRPCLogLength cuts logged calls, in bytes. Negative: not cut.
	MaxGRPCLogLength int
	// ExitOnConnectionLoss ends Run when the driver closes the connection, instead of
	// waiting for it to come back.
	ExitOnConnectionLoss bool

	ignored flagset.Ignored
}

// NewOptions returns the defaults.
func NewOptions() Options {
	return Options{
		CSI:            flagset.NewCSI(),
		Kube:           flagset.NewKube(),
		LeaderElection: flagset.NewLeaderElection(),
		HTTP:           flagset.NewHTTP(),
		Retry:          flagset.NewRetry(),
		Features: flagset.NewFeatureGates(map[string]flagset.Gate{
			GateErrorCode:     {Default: true, Stage: flagset.GA},
			GateReleaseLeader: {Default: false, Stage: flagset.Alpha},
		}),
		KubeTimeout:      30 * time.Second,
		Workers:          10,
		Resync:           10 * time.Minute,
		ReconcileSync:    time.Minute,
		NodeRetry:        15 * time.Second,
		MaxGRPCLogLength: -1,
	}
}

// groups returns the groups of flags that all components share.
func (o *Options) groups() []flagset.Group {
	return []flagset.Group{&o.CSI, &o.Kube, &o.LeaderElection, &o.HTTP, &o.Retry, &o.Features, &o.Secrets}
}

// AddFlags registers all flags on fs, except --version and those of the log, which every binary
// has (csikit/command). The values that the fields have at that moment are the defaults.
func (o *Options) AddFlags(fs *flag.FlagSet) {
	flagset.AddFlags(fs, o.groups()...)
	fs.DurationVar(&o.KubeTimeout, "kube-api-timeout", o.KubeTimeout, "deadline of each call to the API server")
	fs.IntVar(&o.Workers, "worker-threads", o.Workers, "maximum concurrent attach operations, and separately detach operations; those of one node at most half as many")
	fs.DurationVar(&o.Resync, "resync", o.Resync, "interval in which every object is reconciled without a change; 0: never")
	fs.DurationVar(&o.ReconcileSync, "reconcile-sync", o.ReconcileSync,
		"interval between two comparisons of all VolumeAttachments with the driver's ListVolumes; 0: never")
	fs.DurationVar(&o.NodeRetry, "node-retry-interval", o.NodeRetry,
		"pause before a node without the driver is checked again; doubles up to --retry-interval-max; the registration of the driver ends it")
	fs.IntVar(&o.MaxEntries, "max-entries", o.MaxEntries, "page size of ListVolumes; 0: the driver's choice")
	fs.StringVar(&o.DefaultFSType, "default-fstype", o.DefaultFSType, "file system `type` of volumes that name none")
	fs.IntVar(&o.MaxGRPCLogLength, "max-grpc-log-length", o.MaxGRPCLogLength, "longest request or reply in the log, in bytes; -1: no limit")
	fs.BoolVar(&o.ExitOnConnectionLoss, "exit-on-connection-loss", o.ExitOnConnectionLoss,
		"exit when the driver closes the connection, instead of waiting for it to come back")
	o.ignored.AutoMaxProcs(fs)
}

// Validate reports everything that is wrong at once, each error naming the flag and the rule.
func (o *Options) Validate() error {
	errs := []error{flagset.Validate(o.groups()...)}
	if o.Workers < 1 {
		errs = append(errs, fmt.Errorf("--worker-threads=%d: must be at least 1", o.Workers))
	}
	if o.MaxEntries < 0 || o.MaxEntries > math.MaxInt32 {
		errs = append(errs, fmt.Errorf("--max-entries=%d: must be from 0 to %d", o.MaxEntries, math.MaxInt32))
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{{"kube-api-timeout", o.KubeTimeout}, {"node-retry-interval", o.NodeRetry}} {
		if d.value <= 0 {
			errs = append(errs, fmt.Errorf("--%s=%v: must be greater than 0", d.flag, d.value))
		}
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{{"resync", o.Resync}, {"reconcile-sync", o.ReconcileSync}} {
		if d.value < 0 {
			errs = append(errs, fmt.Errorf("--%s=%v: must not be negative", d.flag, d.value))
		}
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
