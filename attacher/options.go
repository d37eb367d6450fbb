package attacher

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"time"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/sidecar"
)

// GateErrorCode is a feature gate. It writes the gRPC code of a failure into the status, where the kubelet looks for ResourceExhausted to
// find out that the node's number of volumes has changed.
const GateErrorCode = "MutableCSINodeAllocatableCount"

// Options configure one attacher. NewOptions returns the defaults.
type Options struct {
	// Options are the flags that it shares with other sidecars.
	sidecar.Options

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
}

// NewOptions returns the defaults.
func NewOptions() Options {
	return Options{
		Options: sidecar.NewOptions(map[string]flagset.Gate{
			GateErrorCode: {Default: true, Stage: flagset.GA},
		}),
		Workers:          10,
		Resync:           10 * time.Minute,
		ReconcileSync:    time.Minute,
		NodeRetry:        15 * time.Second,
		MaxGRPCLogLength: -1,
	}
}

// AddFlags registers all flags on fs, except --version and those of the log, which every binary
// has (csikit/command). The values that the fields have at that moment are the defaults.
func (o *Options) AddFlags(fs *flag.FlagSet) {
	flagset.AddFlags(fs, &o.CSI, &o.Options)
	fs.IntVar(&o.Workers, "worker-threads", o.Workers, "maximum concurrent attach operations, and separately detach operations; those of one node at most half as many")
	fs.DurationVar(&o.Resync, "resync", o.Resync, "interval in which every object is reconciled without a change; 0: never")
	fs.DurationVar(&o.ReconcileSync, "reconcile-sync", o.ReconcileSync,
		"interval between two comparisons of all VolumeAttachments with the driver's ListVolumes; 0: never")
	fs.DurationVar(&o.NodeRetry, "node-retry-interval", o.NodeRetry,
		"pause before a node without the driver is checked again; doubles up to --retry-interval-max; the registration of the driver ends it")
	fs.IntVar(&o.MaxEntries, "max-entries", o.MaxEntries, "page size of ListVolumes; 0: the driver's choice")
	fs.StringVar(&o.DefaultFSType, "default-fstype", o.DefaultFSType, "file system `type` of volumes that name none")
	fs.IntVar(&o.MaxGRPCLogLength, "max-grpc-log-length", o.MaxGRPCLogLength, "longest request or reply in the log, in bytes; -1: no limit")
}

// Validate reports everything that is wrong at once, each error naming the flag and the rule.
func (o *Options) Validate() error {
	return errors.Join(
		flagset.Validate(&o.CSI, &o.Options),
		flagset.Require(o.Workers >= 1, "worker-threads", o.Workers, "must be at least 1"),
		flagset.Require(o.MaxEntries >= 0 && o.MaxEntries <= math.MaxInt32, "max-entries", o.MaxEntries, fmt.Sprintf("must be from 0 to %d", math.MaxInt32)),
		flagset.Require(o.NodeRetry > 0, "node-retry-interval", o.NodeRetry, "must be greater than 0"),
		flagset.Require(o.Resync >= 0, "resync", o.Resync, "must not be negative"),
		flagset.Require(o.ReconcileSync >= 0, "reconcile-sync", o.ReconcileSync, "must not be negative"),
	)
}
