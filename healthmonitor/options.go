package healthmonitor

import (
	"errors"
	"flag"
	"time"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/sidecar"
)

// Options configure one health monitor. NewOptions returns the defaults.
type Options struct {
	// Options are the flags that it shares with other sidecars.
	sidecar.Options

	// MonitorInterval is the time in which all volumes of a driver that does not list health are read once.
	MonitorInterval time.Duration
	// ListInterval is the pause between two lists of a driver that lists health.
	ListInterval time.Duration
	// MaxCalls is the maximum number of calls per second that read health. With more volumes a sweep takes longer than MonitorInterval.
	MaxCalls float64
	// Workers is the maximum number of such calls at a time.
	Workers int
	// WatchNodes reports nodes that are down to the claims that are in use there.
	WatchNodes bool

	ignored flagset.Ignored
}

// NewOptions returns the defaults.
func NewOptions() Options {
	return Options{
		Options:         sidecar.NewOptions(nil),
		MonitorInterval: time.Minute,
		ListInterval:    5 * time.Minute,
		MaxCalls:        10,
		Workers:         10,
	}
}

// AddFlags registers all flags on fs, except --version and those of the log, which every binary
// has (csikit/command). The values that the fields have at that moment are the defaults.
func (o *Options) AddFlags(fs *flag.FlagSet) {
	flagset.AddFlags(fs, &o.CSI, &o.Options)
	fs.DurationVar(&o.MonitorInterval, "monitor-interval", o.MonitorInterval,
		"time in which the health of all volumes is read once, of a driver that does not list it; longer if that needs more than --max-calls-per-second")
	fs.DurationVar(&o.ListInterval, "list-volumes-interval", o.ListInterval, "pause between two lists of the health of volumes, of a driver that lists it")
	fs.Float64Var(&o.MaxCalls, "max-calls-per-second", o.MaxCalls, "maximum number of calls per second that read the health of volumes")
	fs.IntVar(&o.Workers, "worker-threads", o.Workers, "maximum number of concurrent calls that read the health of single volumes")
	fs.BoolVar(&o.WatchNodes, "enable-node-watcher", o.WatchNodes, "record an event on claims that are in use on a node that is not ready for 5 minutes, or was deleted")
	o.ignored.Duration(fs, "volume-list-add-interval", "volumes are watched")
	o.ignored.Duration(fs, "node-list-add-interval", "nodes are watched")
	o.ignored.Duration(fs, "resync", "volumes and nodes are watched")
}

// Validate reports everything that is wrong at once, each error naming the flag and the rule.
func (o *Options) Validate() error {
	return errors.Join(
		flagset.Validate(&o.CSI, &o.Options),
		flagset.Require(o.MonitorInterval > 0, "monitor-interval", o.MonitorInterval, "must be greater than 0"),
		flagset.Require(o.ListInterval > 0, "list-volumes-interval", o.ListInterval, "must be greater than 0"),
		flagset.Require(o.MaxCalls > 0, "max-calls-per-second", o.MaxCalls, "must be greater than 0"),
		flagset.Require(o.Workers >= 1, "worker-threads", o.Workers, "must be at least 1"),
	)
}

// Warnings returns a text for each flag that was given although it is deprecated or without effect.
func (o *Options) Warnings() []string { return append(o.Options.Warnings(), o.ignored.Warnings()...) }
