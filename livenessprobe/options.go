package livenessprobe

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/longshore-csi/longshore/csikit/flagset"
)

const (
	defaultProbeTimeout = 3 * time.Second
	defaultHealthPort   = "9808"
	defaultResultAge    = 500 * time.Millisecond
	maxProbeTimeout     = 50 * time.Second
)

// Options configures a probe. Start from NewOptions.
type Options struct {
	// CSI is how the driver is reached. CSI.Timeout bounds each Probe.
	CSI flagset.CSI
	// HTTP is where health and metrics are served. Without an endpoint, health
	// is served on HealthPort.
	HTTP flagset.HTTP
	// HealthPort is the port of health, if HTTP.Endpoint is empty.
	//
	// Deprecated: use HTTP.Endpoint.
	HealthPort string
	// ResultMaxAge is how long the result of a Probe call answers further
	// requests. 0: only requests that arrive during the call.
	ResultMaxAge time.Duration
	// StartupGrace is how long after the start a driver counts as healthy
	// although it has not been ready once. 0: not at all.
	StartupGrace time.Duration

	ignored flagset.Ignored
	// listening is called with the address of each HTTP listener.
	listening func(address string)
}

// NewOptions returns the defaults.
func NewOptions() Options {
	csi := flagset.NewCSI()
	csi.Timeout = defaultProbeTimeout
	return Options{
		CSI:          csi,
		HTTP:         flagset.NewHTTP(),
		HealthPort:   defaultHealthPort,
		ResultMaxAge: defaultResultAge,
	}
}

// AddFlags registers the flags of this component on fs. --version and the
// logging flags are those of every command.
func (o *Options) AddFlags(fs *flag.FlagSet) {
	o.CSI.AddAddressFlag(fs)
	fs.DurationVar(&o.CSI.Timeout, "probe-timeout", o.CSI.Timeout, "deadline of each call to the CSI driver, connecting included")
	fs.StringVar(&o.HealthPort, "health-port", o.HealthPort, "deprecated, use --http-endpoint: `port` of /healthz; not used with --http-endpoint")
	o.HTTP.AddFlags(fs)
	fs.DurationVar(&o.ResultMaxAge, "result-max-age", o.ResultMaxAge, "how long the result of a Probe call answers further requests; 0: only requests that arrive during the call")
	fs.DurationVar(&o.StartupGrace, "startup-grace", o.StartupGrace, "time after the start of this process in which a driver that was never ready counts as healthy")
	o.ignored.AutoMaxProcs(fs)
}

// Warnings names flags that were given although they are deprecated or have
// no effect.
func (o *Options) Warnings() []string {
	var warnings []string
	if o.HealthPort != defaultHealthPort {
		warnings = append(warnings, "--health-port is deprecated, use --http-endpoint")
	}
	return append(warnings, flagset.Warnings(&o.HTTP, &o.ignored)...)
}

// Validate reports everything that is wrong at once.
func (o *Options) Validate() error {
	errs := []error{o.validateTimes()}
	address := o.CSI
	address.Timeout = defaultProbeTimeout // o's own has another name, and its own check
	http := o.HTTP
	http.Pprof = false // profiles are served wherever health is
	errs = append(errs, flagset.Validate(&address, &http))
	if _, err := strconv.ParseUint(o.HealthPort, 10, 16); err != nil {
		errs = append(errs, fmt.Errorf("--health-port=%q: must be a port from 0 to 65535", o.HealthPort))
	}
	if o.HTTP.Endpoint != "" && o.HealthPort != defaultHealthPort {
		errs = append(errs, fmt.Errorf("--health-port=%q: must not be set together with --http-endpoint", o.HealthPort))
	}
	return errors.Join(errs...)
}

func (o *Options) validateTimes() error {
	var errs []error
	if o.CSI.Timeout <= 0 || o.CSI.Timeout > maxProbeTimeout {
		errs = append(errs, fmt.Errorf("--probe-timeout=%v: must be greater than 0 and at most %v", o.CSI.Timeout, maxProbeTimeout))
	}
	if o.ResultMaxAge < 0 {
		errs = append(errs, fmt.Errorf("--result-max-age=%v: must not be negative", o.ResultMaxAge))
	}
	if o.StartupGrace < 0 {
		errs = append(errs, fmt.Errorf("--startup-grace=%v: must not be negative", o.StartupGrace))
	}
	return errors.Join(errs...)
}

// address returns where health is served: on all addresses of both IP
// families, if only a port is given.
func (o *Options) address() string {
	if o.HTTP.Endpoint != "" {
		return o.HTTP.Endpoint
	}
	return net.JoinHostPort("", o.HealthPort)
}
