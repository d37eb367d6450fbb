package snapshotmetadata

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/snapshotmetadata/internal/certificate"
)

// Environment variables with the values of --tls-cert and --tls-key, where these are not set.
const (
	EnvTLSCert = "TLS_CERT_PATH"
	EnvTLSKey  = "TLS_KEY_PATH"
)

// Options configure one instance. NewOptions returns the defaults; TLSCert and TLSKey are required.
type Options struct {
	// CSI is the address of the driver. CSI.Timeout bounds each call to it but the streams.
	CSI flagset.CSI
	// Kube is the connection to the API server.
	Kube flagset.Kube
	// HTTP is where metrics, health and state are served.
	HTTP flagset.HTTP
	// Secrets limits which secrets are read for calls to the driver.
	Secrets flagset.Secrets
	// KubeTimeout bounds what a call asks the API server for before it streams.
	KubeTimeout time.Duration
	// ExitOnConnectionLoss ends Run when the driver closes the connection, instead of waiting for it to come back.
	ExitOnConnectionLoss bool

	// Port is that of the gRPC service, on all addresses. 0: the system chooses one.
	Port int
	// TLSCert and TLSKey are the paths of the certificate, with its chain, and of its key, both PEM. They are read again when they change.
	TLSCert, TLSKey string
	// TLSMinVersion is VersionTLS12 or VersionTLS13. Empty: VersionTLS12.
	TLSMinVersion string
	// TLSCipherSuites are comma-separated names of cipher suites of TLS 1.2, as crypto/tls has them. Empty: Go's defaults.
	TLSCipherSuites string
	// TLSCurves are comma-separated names of key exchanges: X25519MLKEM768, X25519, CurveP256, CurveP384, CurveP521. Empty: Go's defaults.
	TLSCurves string
	// Audience is the one that tokens must be made for. Empty: that of the SnapshotMetadataService with the name of the driver.
	Audience string
	// MaxStreamingMinutes is the longest duration of a stream in minutes.
	MaxStreamingMinutes int
	// MaxStreams is how many streams there may be at a time, and MaxStreamsPerUser how many of one user.
	MaxStreams, MaxStreamsPerUser int
	// DisableMetrics: the HTTP endpoint does not serve metrics.
	DisableMetrics bool

	// listening is called with the address of the gRPC service.
	listening func(address string)
	ignored   flagset.Ignored
}

// NewOptions returns the defaults.
func NewOptions() Options {
	o := Options{
		CSI:                 flagset.NewCSI(),
		Kube:                flagset.NewKube(),
		HTTP:                flagset.NewHTTP(),
		KubeTimeout:         30 * time.Second,
		Port:                50051,
		TLSCert:             os.Getenv(EnvTLSCert),
		TLSKey:              os.Getenv(EnvTLSKey),
		MaxStreamingMinutes: 10,
		MaxStreams:          200,
		MaxStreamsPerUser:   50,
	}
	o.CSI.Timeout = time.Minute
	o.HTTP.Endpoint = ":8080"
	return o
}

func (o *Options) groups() []flagset.Group {
	return []flagset.Group{&o.CSI, &o.Kube, &o.HTTP, &o.Secrets}
}

// AddFlags registers all flags on fs, except --version and those of the log, which every binary
// has (csikit/command). The values that the fields have at that moment are the defaults.
func (o *Options) AddFlags(fs *flag.FlagSet) {
	flagset.AddFlags(fs, o.groups()...)
	fs.DurationVar(&o.KubeTimeout, "kube-api-timeout", o.KubeTimeout, "deadline of the token and access reviews of a call, and again of finding its snapshot")
	fs.BoolVar(&o.ExitOnConnectionLoss, "exit-on-connection-loss", o.ExitOnConnectionLoss, "exit when the driver closes the connection, instead of waiting for it to come back")
	fs.IntVar(&o.Port, "port", o.Port, "TCP port of the gRPC service, on all addresses; 0: a free one")
	fs.StringVar(&o.TLSCert, "tls-cert", o.TLSCert, "`path` of the TLS certificate with its chain, PEM; read again when it changes; default: $"+EnvTLSCert)
	fs.StringVar(&o.TLSKey, "tls-key", o.TLSKey, "`path` of the key of the TLS certificate, PEM; read again when it changes; default: $"+EnvTLSKey)
	fs.StringVar(&o.TLSMinVersion, "tls-min-version", o.TLSMinVersion, "lowest TLS `version`, VersionTLS12 or VersionTLS13; empty: VersionTLS12")
	fs.StringVar(&o.TLSCipherSuites, "tls-cipher-suites", o.TLSCipherSuites, "comma-separated `names` of cipher suites of TLS 1.2, such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256; empty: Go's defaults")
	fs.StringVar(&o.TLSCurves, "tls-curve-preferences", o.TLSCurves, "comma-separated `names` of key exchanges: X25519MLKEM768, X25519, CurveP256, CurveP384, CurveP521; empty: Go's defaults")
	fs.StringVar(&o.Audience, "audience", o.Audience, "`audience` that tokens must be made for; empty: that of the SnapshotMetadataService with the name of the driver")
	fs.IntVar(&o.MaxStreamingMinutes, "max-streaming-duration-min", o.MaxStreamingMinutes, "longest duration of a stream in `minutes`; the client can continue it with another call")
	fs.IntVar(&o.MaxStreams, "max-streams", o.MaxStreams, "maximum number of streams at a time")
	fs.IntVar(&o.MaxStreamsPerUser, "max-streams-per-user", o.MaxStreamsPerUser, "maximum number of streams of one user at a time")
	o.addIgnored(fs)
	fs.BoolVar(&o.DisableMetrics, "disable-metrics", o.DisableMetrics, "serve no metrics at --http-endpoint, but health and state")
}

// addIgnored accepts the flags of klog that the external-snapshot-metadata has.
func (o *Options) addIgnored(fs *flag.FlagSet) {
	const why = "the log goes to stderr, as the flags of the log say"
	for _, name := range []string{"logtostderr", "alsologtostderr", "skip_headers", "skip_log_headers", "add_dir_header", "one_output", "legacy_stderr_threshold_behavior"} {
		o.ignored.Bool(fs, name, why)
	}
	for _, name := range []string{"stderrthreshold", "log_dir", "log_file", "log_backtrace_at"} {
		o.ignored.String(fs, name, why)
	}
	o.ignored.Int(fs, "log_file_max_size", why)
}

// Warnings names flags that were given although they are deprecated, or have no effect.
func (o *Options) Warnings() []string { return flagset.Warnings(&o.ignored, &o.HTTP) }

// Validate reports everything that is wrong at once, each error naming the flag and the rule.
func (o *Options) Validate() error {
	const maxPort, maxMinutes = math.MaxUint16, 24 * 60
	errs := []error{flagset.Validate(o.groups()...), o.validateTLS()}
	if o.KubeTimeout <= 0 {
		errs = append(errs, fmt.Errorf("--kube-api-timeout=%v: must be greater than 0", o.KubeTimeout))
	}
	if o.Port < 0 || o.Port > maxPort {
		errs = append(errs, fmt.Errorf("--port=%d: must be from 0 to %d", o.Port, maxPort))
	}
	if o.MaxStreamingMinutes < 1 || o.MaxStreamingMinutes > maxMinutes {
		errs = append(errs, fmt.Errorf("--max-streaming-duration-min=%d: must be from 1 to %d", o.MaxStreamingMinutes, maxMinutes))
	}
	if o.MaxStreams < 1 {
		errs = append(errs, fmt.Errorf("--max-streams=%d: must be at least 1", o.MaxStreams))
	}
	if o.MaxStreamsPerUser < 1 {
		errs = append(errs, fmt.Errorf("--max-streams-per-user=%d: must be at least 1", o.MaxStreamsPerUser))
	}
	return errors.Join(errs...)
}

func (o *Options) validateTLS() error {
	var errs []error
	if o.TLSCert == "" {
		errs = append(errs, fmt.Errorf("--tls-cert=: must be the path of a certificate, or $%s", EnvTLSCert))
	}
	if o.TLSKey == "" {
		errs = append(errs, fmt.Errorf("--tls-key=: must be the path of a key, or $%s", EnvTLSKey))
	}
	policy := o.policy()
	_, version := policy.Version()
	_, suites := policy.Suites()
	_, curves := policy.CurveIDs()
	for _, f := range []struct {
		flag string
		err  error
	}{{"tls-min-version", version}, {"tls-cipher-suites", suites}, {"tls-curve-preferences", curves}} {
		if f.err != nil {
			errs = append(errs, fmt.Errorf("--%s=%w", f.flag, f.err))
		}
	}
	return errors.Join(errs...)
}

func (o *Options) policy() certificate.Policy {
	return certificate.Policy{MinVersion: o.TLSMinVersion, CipherSuites: o.TLSCipherSuites, Curves: o.TLSCurves}
}
