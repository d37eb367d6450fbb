package csiclient

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/longshore-csi/longshore/csikit/metrics"
)

const (
	// DefaultTimeout bounds each start-up call when Config.Timeout is zero.
	DefaultTimeout = 10 * time.Second
	// DefaultPoll is the pause between probes when Config.Poll is zero.
	DefaultPoll = time.Second
	// DefaultLogEvery is the interval at which Wait and Run log why they wait.
	DefaultLogEvery = 30 * time.Second

	// maxSocketPath is the longest path that fits into sockaddr_un on Linux.
	maxSocketPath = 107
	// maxReply bounds one reply. A ListVolumes reply of 10,000 volumes is a few
	// MiB, more than gRPC's default of 4 MiB.
	maxReply = 256 << 20
)

// Service names a group of capabilities to read from the driver.
type Service uint8

const (
	// ControllerService reads ControllerGetCapabilities.
	ControllerService Service = 1 << iota
	// GroupControllerService reads GroupControllerGetCapabilities.
	GroupControllerService
	// NodeService reads NodeGetCapabilities.
	NodeService
	// IdentityOnly reads the name and the plugin capabilities, nothing else.
	IdentityOnly

	allServices = ControllerService | GroupControllerService | NodeService
)

// Config says how to reach a driver. Only Address (or Conn) is required.
type Config struct {
	// Address is the driver's socket: an absolute path, unix:///path, or
	// tcp://host:port where a unix socket is not at hand.
	Address string
	// Conn replaces the connection to Address, for drivers in the same process.
	Conn grpc.ClientConnInterface
	// Timeout bounds each call that the client makes on its own: Probe,
	// GetPluginInfo and the reading of capabilities. Default 10 s.
	Timeout time.Duration
	// Poll is the pause between two probes of a driver that is not ready. Default 1 s.
	Poll time.Duration
	// LogEvery is the interval at which Wait and Run log why they wait. Default 30 s.
	LogEvery time.Duration
	// Services says which capabilities to read. Zero reads all. A driver that announces a controller service and does not
	// answer for it is waited for; one that has no node service is one without capabilities of the node.
	Services Service
	// SkipNode reports that NodeGetCapabilities is not needed, as the controller has answered so. nil: never.
	SkipNode func(*Info) bool
	// Metrics measures all calls. Its driver name is set as soon as it is known.
	Metrics *metrics.CSI
	// MaxLogLength cuts logged requests and replies, in bytes. Zero: not cut.
	MaxLogLength int
	// ExitOnLoss makes Run return ErrConnectionLost when the connection is
	// lost, instead of waiting for the driver to come back.
	ExitOnLoss bool
	// Interceptors see each call first, before metrics and log. They are the place for tracing, too.
	Interceptors []grpc.UnaryClientInterceptor
}

func (cfg Config) withDefaults() Config {
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.Poll == 0 {
		cfg.Poll = DefaultPoll
	}
	if cfg.LogEvery == 0 {
		cfg.LogEvery = DefaultLogEvery
	}
	if cfg.Services == 0 {
		cfg.Services = allServices
	}
	return cfg
}

func (cfg Config) validate() error {
	var errs []error
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"timeout", cfg.Timeout}, {"poll interval", cfg.Poll}, {"log interval", cfg.LogEvery}} {
		if d.value < 0 {
			errs = append(errs, fmt.Errorf("%s %v: must not be negative", d.name, d.value))
		}
	}
	if cfg.MaxLogLength < 0 {
		errs = append(errs, fmt.Errorf("maximum log length %d: must not be negative", cfg.MaxLogLength))
	}
	if cfg.Conn == nil {
		if _, err := parseAddress(cfg.Address); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// target is an address in the terms of net.Dial.
type target struct{ network, address string }

// parseAddress reads the forms of Config.Address.
func parseAddress(address string) (target, error) {
	if hostPort, ok := strings.CutPrefix(address, "tcp://"); ok {
		if hostPort == "" {
			return target{}, fmt.Errorf("CSI address %q: host and port are missing after tcp://", address)
		}
		return target{"tcp", hostPort}, nil
	}
	socket, hasScheme := strings.CutPrefix(address, "unix:")
	if hasScheme && strings.HasPrefix(socket, "//") {
		socket = socket[2:]
	}
	switch {
	case socket == "":
		return target{}, fmt.Errorf("CSI address %q: must be the path of a unix socket", address)
	case strings.Contains(socket, "://"):
		return target{}, fmt.Errorf("CSI address %q: the scheme must be unix:// or tcp://, or none", address)
	case !path.IsAbs(socket):
		return target{}, fmt.Errorf("CSI address %q: the path of a unix socket must be absolute", address)
	case len(socket) > maxSocketPath:
		return target{}, fmt.Errorf("CSI address %q: the path of a unix socket must not exceed %d bytes, this one has %d", address, maxSocketPath, len(socket))
	}
	return target{"unix", socket}, nil
}
