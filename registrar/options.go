package registrar

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/longshore-csi/longshore/csikit/flagset"
)

const (
	// ModeProbe is the value of --mode that former versions used as an exec
	// probe. The process ends at once, without an error.
	ModeProbe = "kubelet-registration-probe"

	defaultTimeout     = time.Second
	defaultSocketDir   = "/registration"
	defaultRetryStart  = time.Second
	defaultRetryMax    = time.Minute
	defaultCheck       = time.Second
	kubeletPluginsDir  = "/var/lib/kubelet/plugins"
	driverSocket       = "csi.sock"
	registrationSuffix = "-reg.sock"
)

// Options configures a registrar. Start from NewOptions.
type Options struct {
	// CSI is how the registrar itself reaches the driver. CSI.Timeout bounds
	// each call to the driver.
	CSI flagset.CSI
	// KubeletRegistrationPath is the driver's socket as the kubelet sees it.
	// Empty: /var/lib/kubelet/plugins/<driver>/csi.sock.
	KubeletRegistrationPath string
	// PluginRegistrationPath is the directory for the registration socket
	// <driver>-reg.sock; the kubelet's plugins_registry, mounted.
	PluginRegistrationPath string
	// RequiresPublishPod asks nodes that call csiregistration.CSIRegistration
	// to add pod information to NodePublishVolume.
	RequiresPublishPod bool
	// HTTPEndpoint is host:port for health, metrics and state. Empty: none.
	HTTPEndpoint string
	// HealthPort is a port for the same.
	//
	// Deprecated: use HTTPEndpoint.
	HealthPort int
	// Pprof adds Go profiles to HTTPEndpoint.
	Pprof bool
	// Mode is empty or ModeProbe. Any other value has no effect.
	//
	// Deprecated: registration is the only mode.
	Mode string
	// Retry bounds the pause before a refused registration is tried again. It
	// has no flag.
	Retry flagset.Retry
	// CheckInterval is how often the registrar checks that its socket still
	// exists. It has no flag.
	CheckInterval time.Duration

	ignored flagset.Ignored
	// listening is called with the address of the HTTP listener.
	listening func(address string)
}

// NewOptions returns the defaults.
func NewOptions() Options {
	csi := flagset.NewCSI()
	csi.Timeout = defaultTimeout
	return Options{
		CSI:                    csi,
		PluginRegistrationPath: defaultSocketDir,
		Retry:                  flagset.Retry{Start: defaultRetryStart, Max: defaultRetryMax},
		CheckInterval:          defaultCheck,
	}
}

// AddFlags registers the flags of this component on fs. --version and the
// logging flags are those of every command.
func (o *Options) AddFlags(fs *flag.FlagSet) {
	o.CSI.AddFlags(fs)
	fs.StringVar(&o.KubeletRegistrationPath, "kubelet-registration-path", o.KubeletRegistrationPath,
		"`path` of the CSI driver's socket as the kubelet sees it on the host; empty: "+kubeletPluginsDir+"/NAME/"+driverSocket+" with the driver's name")
	fs.StringVar(&o.PluginRegistrationPath, "plugin-registration-path", o.PluginRegistrationPath,
		"`directory` for the registration socket, the kubelet's plugins_registry as mounted here")
	fs.BoolVar(&o.RequiresPublishPod, "requires-publish-pod", o.RequiresPublishPod,
		"ask nodes that call csiregistration.CSIRegistration to add pod information to NodePublishVolume")
	fs.StringVar(&o.HTTPEndpoint, "http-endpoint", o.HTTPEndpoint,
		"`host:port` that serves health, metrics and state, for instance :9809; empty: no listener")
	fs.IntVar(&o.HealthPort, "health-port", o.HealthPort, "deprecated, use --http-endpoint: `port` that serves health, metrics and state")
	fs.BoolVar(&o.Pprof, "enable-pprof", o.Pprof, "serve Go profiles under /debug/pprof/ of --http-endpoint, and /debug/state to other hosts than this one")
	fs.StringVar(&o.Mode, "mode", o.Mode, "deprecated: with "+ModeProbe+" the process ends at once, with exit code 0; other values have no effect")
	o.ignored.Duration(fs, "connection-timeout", "the registrar waits for the driver without a limit")
	o.ignored.AutoMaxProcs(fs)
}

// Warnings names flags that were given although they are deprecated or have
// no effect.
func (o *Options) Warnings() []string {
	var warnings []string
	if o.HealthPort != 0 {
		warnings = append(warnings, "--health-port is deprecated, use --http-endpoint")
	}
	switch o.Mode {
	case "":
	case ModeProbe:
		warnings = append(warnings, "--mode="+ModeProbe+" is deprecated and checks nothing; use a livenessProbe on /livez of --http-endpoint")
	default:
		warnings = append(warnings, fmt.Sprintf("--mode=%q has no effect: registration is the only mode", o.Mode))
	}
	if o.Pprof && o.address() == "" {
		warnings = append(warnings, "--enable-pprof has no effect without --http-endpoint")
	}
	return append(warnings, o.ignored.Warnings()...)
}

// Validate reports everything that is wrong at once.
func (o *Options) Validate() error {
	errs := []error{flagset.Validate(&o.CSI, &o.Retry)}
	if path := o.KubeletRegistrationPath; path != "" && !filepath.IsAbs(strings.TrimPrefix(path, "unix://")) {
		errs = append(errs, fmt.Errorf("--kubelet-registration-path=%q: must be an absolute path", path))
	}
	if o.PluginRegistrationPath == "" {
		errs = append(errs, fmt.Errorf("--plugin-registration-path=%q: must not be empty", o.PluginRegistrationPath))
	}
	errs = append(errs, o.validateHTTP())
	if o.CheckInterval <= 0 {
		errs = append(errs, fmt.Errorf("check interval %v: must be greater than 0", o.CheckInterval))
	}
	return errors.Join(errs...)
}

func (o *Options) validateHTTP() error {
	var errs []error
	if o.HealthPort < 0 || o.HealthPort > 65535 {
		errs = append(errs, fmt.Errorf("--health-port=%d: must be a port from 0 to 65535", o.HealthPort))
	}
	if o.HealthPort != 0 && o.HTTPEndpoint != "" {
		errs = append(errs, fmt.Errorf("--health-port=%d: must not be set together with --http-endpoint", o.HealthPort))
	}
	if o.HTTPEndpoint != "" {
		if _, _, err := net.SplitHostPort(o.HTTPEndpoint); err != nil {
			errs = append(errs, fmt.Errorf("--http-endpoint=%q: must be host:port or :port: %w", o.HTTPEndpoint, err))
		}
	}
	return errors.Join(errs...)
}

// address returns where to serve HTTP, or nothing.
func (o *Options) address() string {
	if o.HealthPort != 0 {
		return net.JoinHostPort("", strconv.Itoa(o.HealthPort))
	}
	return o.HTTPEndpoint
}

// endpoint returns the driver's socket as the kubelet sees it.
func (o *Options) endpoint(driver string) string {
	if o.KubeletRegistrationPath == "" {
		return filepath.Join(kubeletPluginsDir, driver, driverSocket)
	}
	return strings.TrimPrefix(o.KubeletRegistrationPath, "unix://")
}

// socketPath returns the registration socket of a driver.
func (o *Options) socketPath(driver string) string {
	return filepath.Join(o.PluginRegistrationPath, driver+registrationSuffix)
}
