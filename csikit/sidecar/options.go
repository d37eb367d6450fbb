package sidecar

import (
	"flag"
	"fmt"
	"math"
	"time"

	"github.com/longshore-csi/longshore/csikit/component"
	"github.com/longshore-csi/longshore/csikit/flagset"
)

// Options are the flags that sidecars share. A component embeds them in its own options. NewOptions returns the defaults.
type Options struct {
	// Options are the flags that all components share.
	component.Options
	// CSI is the address of the driver and the deadline of calls to it. The component adds its flags and validates it, as the
	// deadlines differ.
	CSI flagset.CSI
	// Secrets limits which secrets are read for calls to the driver.
	Secrets flagset.Secrets
	// ExitOnConnectionLoss ends Run when the driver closes the connection, instead of waiting for it to come back.
	ExitOnConnectionLoss bool

	// usual are the timeout and the grace period that the component has by default.
	usual [2]time.Duration
}

// NewOptions returns the defaults, with the component's feature gates and component.GateReleaseLeader.
func NewOptions(gates map[string]flagset.Gate) Options {
	return Options{Options: component.NewOptions(gates), CSI: flagset.NewCSI()}
}

var (
	_ flagset.Group  = (*Options)(nil)
	_ flagset.Warner = (*Options)(nil)
)

// AddFlags registers all flags on fs but those of the driver. The values that the fields have at that moment are the defaults.
func (o *Options) AddFlags(fs *flag.FlagSet) {
	o.usual = [2]time.Duration{o.CSI.Timeout, o.GracePeriod}
	flagset.AddFlags(fs, &o.Options, &o.Secrets)
	fs.BoolVar(&o.ExitOnConnectionLoss, "exit-on-connection-loss", o.ExitOnConnectionLoss,
		"exit when the driver closes the connection, instead of waiting for it to come back")
}

// Validate reports everything that is wrong at once, each error naming the flag and the rule.
func (o *Options) Validate() error { return flagset.Validate(&o.Options, &o.Secrets) }

// Warnings returns a text for each flag that was given although it is deprecated or without effect, and for calls that may be longer than the pod lives, unless
// they are so by default.
func (o *Options) Warnings() []string {
	warnings := o.Options.Warnings()
	changed := o.usual != [2]time.Duration{o.CSI.Timeout, o.GracePeriod}
	if need := o.CSI.Timeout + o.GracePeriod - o.Drain(); changed && need > o.GracePeriod {
		warnings = append(warnings, fmt.Sprintf("--timeout=%v: at shutdown, calls to the driver are cancelled after %v; to let them end, set terminationGracePeriodSeconds of the pod to %v and --termination-grace-period=%v",
			o.CSI.Timeout, o.Drain(), math.Ceil(need.Seconds()), need))
	}
	return warnings
}
