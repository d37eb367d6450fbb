package component

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

const (
	// stopReserve is the part of the grace period in which no operation is in progress any more: the last events are written and the Lease is released.
	stopReserve = 5 * time.Second
	// minDrain is the least time that operations in progress get.
	minDrain = 5 * time.Second
)

// Options are the flags that components share. A component embeds them in its own options. NewOptions returns the defaults.
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
	// KubeTimeout is the deadline of each call to the API server.
	KubeTimeout time.Duration
	// GracePeriod is the time between SIGTERM and SIGKILL: terminationGracePeriodSeconds of the pod.
	GracePeriod time.Duration

	ignored flagset.Ignored
}

// NewOptions returns the defaults, with the component's feature gates and GateReleaseLeader.
func NewOptions(gates map[string]flagset.Gate) Options {
	all := map[string]flagset.Gate{GateReleaseLeader: {Default: false, Stage: flagset.Alpha}}
	maps.Copy(all, gates)
	return Options{
		Kube:           flagset.NewKube(),
		LeaderElection: flagset.NewLeaderElection(),
		HTTP:           flagset.NewHTTP(),
		Retry:          flagset.NewRetry(),
		Features:       flagset.NewFeatureGates(all),
		KubeTimeout:    30 * time.Second,
		GracePeriod:    30 * time.Second,
	}
}

var (
	_ flagset.Group  = (*Options)(nil)
	_ flagset.Warner = (*Options)(nil)
)

// groups returns the groups of flags.
func (o *Options) groups() []flagset.Group {
	return []flagset.Group{&o.Kube, &o.LeaderElection, &o.HTTP, &o.Retry, &o.Features}
}

// AddFlags registers all flags on fs. The values that the fields have at that moment are the defaults.
func (o *Options) AddFlags(fs *flag.FlagSet) {
	flagset.AddFlags(fs, o.groups()...)
	fs.DurationVar(&o.KubeTimeout, "kube-api-timeout", o.KubeTimeout, "deadline of each call to the API server")
	fs.DurationVar(&o.GracePeriod, "termination-grace-period", o.GracePeriod, fmt.Sprintf(
		"time from SIGTERM to SIGKILL, terminationGracePeriodSeconds of the pod; the process ends earlier, and operations in progress may take %v less", stopReserve))
	o.ignored.AutoMaxProcs(fs)
}

// Drain returns how long operations in progress may go on after SIGTERM.
func (o *Options) Drain() time.Duration { return o.GracePeriod - stopReserve }

// Validate reports everything that is wrong at once, each error naming the flag and the rule.
func (o *Options) Validate() error {
	err := flagset.Validate(o.groups()...)
	if o.KubeTimeout <= 0 {
		err = errors.Join(err, fmt.Errorf("--kube-api-timeout=%v: must be greater than 0", o.KubeTimeout))
	}
	if least := stopReserve + minDrain; o.GracePeriod < least {
		err = errors.Join(err, fmt.Errorf("--termination-grace-period=%v: must be at least %v", o.GracePeriod, least))
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
