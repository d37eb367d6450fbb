package flagset

import (
	"errors"
	"flag"
	"net"
	"strconv"
	"strings"
)

// HTTP says where metrics, health and profiles are served.
type HTTP struct {
	// Endpoint is host:port of the listener. Empty: no listener.
	Endpoint string
	// MetricsAddress is the former name of Endpoint; both together are an error.
	//
	// Deprecated: use Endpoint.
	MetricsAddress string
	// MetricsPath is the path of the metrics on the listener.
	MetricsPath string
	// Pprof adds /debug/pprof to the listener.
	Pprof bool
}

// NewHTTP returns the defaults: no listener.
func NewHTTP() HTTP {
	return HTTP{MetricsPath: "/metrics"}
}

// AddFlags registers --http-endpoint, --metrics-address, --metrics-path and --enable-pprof.
func (h *HTTP) AddFlags(fs *flag.FlagSet) {
	fs.StringVar(&h.Endpoint, "http-endpoint", h.Endpoint,
		"`host:port` that serves metrics, health and state, for instance :8080; empty: no listener")
	fs.StringVar(&h.MetricsAddress, "metrics-address", h.MetricsAddress,
		"deprecated, use --http-endpoint: `host:port` of the metrics; not together with --http-endpoint")
	fs.StringVar(&h.MetricsPath, "metrics-path", h.MetricsPath, "`path` of the metrics on the listener")
	fs.BoolVar(&h.Pprof, "enable-pprof", h.Pprof, "serve Go profiles under /debug/pprof/ of --http-endpoint, and /debug/state to other hosts than this one")
}

// Address returns where to listen, whichever flag named it, or nothing.
func (h *HTTP) Address() string {
	if h.Endpoint != "" {
		return h.Endpoint
	}
	return h.MetricsAddress
}

// Validate reports addresses that are not host:port, both addresses at once, and a path without a leading slash.
func (h *HTTP) Validate() error {
	var errs []error
	if h.Endpoint != "" && h.MetricsAddress != "" {
		errs = append(errs, invalid("metrics-address", h.MetricsAddress, "must not be set together with --http-endpoint"))
	}
	if !isHostPort(h.Endpoint) {
		errs = append(errs, invalid("http-endpoint", h.Endpoint, "must be host:port or :port with a port from 0 to 65535"))
	}
	if !isHostPort(h.MetricsAddress) {
		errs = append(errs, invalid("metrics-address", h.MetricsAddress, "must be host:port or :port with a port from 0 to 65535"))
	}
	if !strings.HasPrefix(h.MetricsPath, "/") {
		errs = append(errs, invalid("metrics-path", h.MetricsPath, "must begin with /"))
	}
	if h.Pprof && h.Address() == "" {
		errs = append(errs, invalid("enable-pprof", h.Pprof, "needs --http-endpoint"))
	}
	return errors.Join(errs...)
}

// Warnings implements Warner.
func (h *HTTP) Warnings() []string {
	if h.MetricsAddress == "" {
		return nil
	}
	return []string{"--metrics-address is deprecated, use --http-endpoint"}
}

// isHostPort reports whether address can be listened on; an empty one is a listener that is off.
func isHostPort(address string) bool {
	if address == "" {
		return true
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}
