package resizer

import (
	"errors"
	"flag"
	"time"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/sidecar"
)

// Names of the feature gates.
const (
	// GateAttributesClass applies VolumeAttributesClasses (KEP-3751).
	GateAttributesClass = "VolumeAttributesClass"
	// GateAnnotate records the capacity before an expansion on the PersistentVolume until the node has expanded its file system.
	GateAnnotate = "AnnotateFsResize"
	// GateRecover is without effect: a smaller request after a failure is always accepted (KEP-1790).
	GateRecover = "RecoverVolumeExpansionFailure"
)

// defaultTimeout is the default deadline of calls to the driver.
const defaultTimeout = 10 * time.Second

// Options configure one resizer. NewOptions returns the defaults.
type Options struct {
	// Options are the flags that it shares with other sidecars. A CSI.Timeout above 0 overrides ResizeTimeout and ModifyTimeout.
	sidecar.Options

	// ResizeTimeout is the deadline of each ControllerExpandVolume.
	ResizeTimeout time.Duration
	// ModifyTimeout is the deadline of each ControllerModifyVolume.
	ModifyTimeout time.Duration
	// Workers is the number of claims processed concurrently.
	Workers int
	// Resync is the interval in which every claim is reconciled without a change. 0: never.
	Resync time.Duration
	// WaitUntilUnused postpones the expansion of a volume that the driver does not expand while it is in use, until
	// no pod and no node uses it.
	WaitUntilUnused bool
	// ExtraModifyMetadata adds the names of claim and volume to the mutable parameters.
	ExtraModifyMetadata bool
}

// NewOptions returns the defaults.
func NewOptions() Options {
	o := Options{
		Options: sidecar.NewOptions(map[string]flagset.Gate{
			GateAttributesClass: {Default: true, Stage: flagset.GA},
			GateAnnotate:        {Default: true, Stage: flagset.Beta},
			GateRecover:         {Default: true, Stage: flagset.GA},
		}),
		ResizeTimeout:   defaultTimeout,
		ModifyTimeout:   defaultTimeout,
		Workers:         10,
		Resync:          10 * time.Minute,
		WaitUntilUnused: true,
	}
	o.CSI.Timeout = 0
	return o
}

// AddFlags registers all flags on fs, except --version and those of the log, which every binary
// has (csikit/command). The values that the fields have at that moment are the defaults.
func (o *Options) AddFlags(fs *flag.FlagSet) {
	o.Options.AddFlags(fs)
	o.CSI.AddAddressFlag(fs)
	fs.DurationVar(&o.CSI.Timeout, "timeout", o.CSI.Timeout, "deadline of each call to the CSI driver; overrides --resize-timeout and --modify-timeout; 0: does not")
	fs.DurationVar(&o.ResizeTimeout, "resize-timeout", o.ResizeTimeout, "deadline of each ControllerExpandVolume call")
	fs.DurationVar(&o.ModifyTimeout, "modify-timeout", o.ModifyTimeout, "deadline of each ControllerModifyVolume call")
	fs.IntVar(&o.Workers, "workers", o.Workers, "number of volumes that are expanded concurrently, and of those that are modified")
	fs.DurationVar(&o.Resync, "resync-period", o.Resync, "interval in which every claim is reconciled without a change; 0: never")
	fs.BoolVar(&o.WaitUntilUnused, "handle-volume-inuse-error", o.WaitUntilUnused,
		"when the driver does not expand a volume in use, wait until no pod and no node uses it; false: retry with the usual backoff")
	fs.BoolVar(&o.ExtraModifyMetadata, "extra-modify-metadata", o.ExtraModifyMetadata,
		"add csi.storage.k8s.io/pvc/name, csi.storage.k8s.io/pvc/namespace and csi.storage.k8s.io/pv/name to the parameters of ControllerModifyVolume")
}

// resizeTimeout returns the deadline of expansions.
func (o *Options) resizeTimeout() time.Duration {
	if o.CSI.Timeout > 0 {
		return o.CSI.Timeout
	}
	return o.ResizeTimeout
}

// modifyTimeout returns the deadline of modifications.
func (o *Options) modifyTimeout() time.Duration {
	if o.CSI.Timeout > 0 {
		return o.CSI.Timeout
	}
	return o.ModifyTimeout
}

// Validate reports everything that is wrong at once, each error naming the flag and the rule.
func (o *Options) Validate() error {
	reached := o.CSI
	if reached.Timeout == 0 {
		reached.Timeout = o.ResizeTimeout // reported below, by its own name
		if reached.Timeout <= 0 {
			reached.Timeout = defaultTimeout
		}
	}
	return errors.Join(
		flagset.Validate(&reached, &o.Options),
		flagset.Require(o.Workers >= 1, "workers", o.Workers, "must be at least 1"),
		flagset.Require(o.ResizeTimeout > 0, "resize-timeout", o.ResizeTimeout, "must be greater than 0"),
		flagset.Require(o.ModifyTimeout > 0, "modify-timeout", o.ModifyTimeout, "must be greater than 0"),
		flagset.Require(o.Resync >= 0, "resync-period", o.Resync, "must not be negative"),
	)
}

// Warnings returns a text for each flag that was given although it is deprecated or without effect.
func (o *Options) Warnings() []string {
	warnings := o.Options.Warnings()
	if o.Features.Explicit(GateRecover) && !o.Features.Enabled(GateRecover) {
		warnings = append(warnings, "--feature-gates: "+GateRecover+"=false has no effect: expansions that failed can always be made smaller")
	}
	return warnings
}
