package sidecar

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"time"

	"github.com/longshore-csi/longshore/csikit/flagset"
)

// GateReleaseLeader is a feature gate without effect: the Lease is always released when the process ends.
const GateReleaseLeader = "ReleaseLeaderElectionOnExit"

// Options are the flags that sidecars share. A component embeds them in its own options. NewOptions returns the defaults.
type Options struct {
	// CSI is the address of the driver and the deadline of calls to it. The component adds its flags and validates it, as the
	// deadlines differ.
	CSI flagset.CSI
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
	// Secrets limits which secrets are read for calls to the driver.
	Secrets flagset.Secrets
	// KubeTimeout is the deadline of each call to the API server.
	KubeTimeout time.Duration
	// ExitOnConnectionLoss ends Run when the driver closes the connection, instead of waiting for it to come back.
	ExitOnConnectionLoss bool

	ignored flagset.Ignored
}

// NewOptions returns the defaults, with the component's feature gates and GateReleaseLeader.
func NewOptions(gates map[string]flagset.Gate) Options {
	all := map[string]flagset.Gate{GateReleaseLeader: {Default: false, Stage: flagset.Alpha}}
	maps.Copy(all, gates)
	return Options{
		CSI:            flagset.NewCSI(),
		Kube:           flagset.NewKube(),
		LeaderElection: flagset.NewLeaderElection(),
		HTTP:           flagset.NewHTTP(),
		Retry:          flagset.NewRetry(),
		Features:       flagset.NewFeatureGates(all),
		KubeTimeout:    30 * time.Second,
	}
}

var (
	_ flagset.Group  = (*Options)(nil)
	_ flagset.Warner = (*Options)(nil)
)

// groups returns the groups of flags, without that of the driver.
func (o *Options) groups() []flagset.Group {
	return []flagset.Group{&o.Kube, &o.LeaderElection, &o.HTTP, &o.Retry, &o.Features, &o.Secrets}
}

// AddFlags registers all flags on fs but those of the driver. The values that the fields have at that moment are the defaults.
func (o *Options) AddFlags(fs *flag.FlagSet) {
	flagset.AddFlags(fs, o.groups()...)
	fs.DurationVar(&o.KubeTimeout, "kube-api-timeout", o.KubeTimeout, "deadline of each call to the API server")
	fs.BoolVar(&o.ExitOnConnectionLoss, "exit-on-connection-loss", o.ExitOnConnectionLoss,
		"exit when the driver closes the connection, instead of waiting for it to come back")
	o.ignored.AutoMaxProcs(fs)
}

// Validate reports everything that is wrong at once, each error naming the flag and the rule.
func (o *Options) Validate() error {
	err := flagset.Validate(o.groups()...)
	if o.KubeTimeout <= 0 {
		err = errors.Join(err, fmt.Errorf("--kube-api-timeout=%v: must be greater than 0", o.KubeTimeout))
	}
	return err
}

// Warnings returns a text for each flag that was given although it is deprecated or without effect.
func (o *Options) Warnings() []string {
	warnings := flagset.Warnings(&o.HTTP, &o.Features, &o.ignored)
	if o.Features.Explicit(GateReleaseLeader) {
		warnings = append(warnings, "--feature-gates: "+GateReleaseLeader+" has no effect: the Lease is always released on exit")
	}
	return warnings
}
