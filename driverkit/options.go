package driverkit

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/longshore-csi/longshore/csikit/drivername"
	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/procmetrics"
	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/mount"
)

// Mode selects the services of a process.
type Mode string

const (
	// ModeAll serves Identity, Controller and Node.
	ModeAll Mode = "all"
	// ModeController serves Identity and Controller.
	ModeController Mode = "controller"
	// ModeNode serves Identity and Node.
	ModeNode Mode = "node"
)

const (
	defaultEndpoint    = "unix:///csi/csi.sock"
	defaultCallTimeout = 2 * time.Minute
	defaultStopTimeout = 10 * time.Second
)

// Names of environment variables that are the defaults of flags.
const (
	envEndpoint = "CSI_ENDPOINT"
	envNodeID   = "NODE_ID"
	envStateDir = "STATE_DIR"
)

// Options configure one instance of a driver: what the driver is, which its author sets, and how it runs, for which there are flags. Start from
// NewOptions.
type Options struct {
	// DriverName is the answer of GetPluginInfo: a domain name of at most 63 characters.
	DriverName string
	// Support is which capabilities the driver's volumes have.
	Support Support
	// TopologyKeys are the keys of the segments that volumes and nodes have, such as "topology.example.com/zone"; none means that every node reaches
	// every volume. A key needs a value on every node, by --topology or Driver.DescribeNode.
	TopologyKeys []string
	// OfflineExpansion announces that volumes are expanded while no node uses them.
	OfflineExpansion bool

	// Endpoint is where CSI is served: unix:///path, a bare path, or tcp://host:port, which has neither authentication nor encryption.
	Endpoint string
	// Mode selects the services.
	Mode Mode
	// NodeID is the id by which Attach knows this node. Required unless Mode is ModeController or the driver has DescribeNode.
	NodeID string
	// Topology are the node's segments.
	Topology Segments
	// MaxVolumes is how many volumes of the driver the node can have; 0 means no limit.
	MaxVolumes int64
	// StateDir is an absolute path: the directory of the node's journal, which must outlive the process. Required unless Mode is ModeController. A
	// second process of the driver with the same StateDir is refused; drivers of other names have directories of their own in it, see state.Claim.
	StateDir string
	// OwnDirs are further absolute paths of directories of the driver: like StateDir, no volume is staged or published in them, or above them.
	OwnDirs []string
	// CallTimeout bounds calls whose caller sets no deadline.
	CallTimeout time.Duration
	// StopTimeout is how long running calls may go on at the end.
	StopTimeout time.Duration
	// VolumeCondition adds the VolumeCondition of CSI v1.12 to answers, for kubelets up to Kubernetes 1.36, which do not know the health calls of v1.13.
	VolumeCondition bool
	// HTTP serves metrics, health and state.
	HTTP HTTP
	// Registry has the metrics that HTTP serves. A driver registers its own metrics with that of NewOptions, which has those of the process.
	Registry *prometheus.Registry
	// Tracing makes an OpenTelemetry span for each call with the tracer provider of the process. Main sets it by the environment.
	Tracing bool

	// Opened is called once when this process holds the lock of StateDir, before the first call is served: for a driver that has state of its own. An error
	// ends Serve.
	Opened func(ctx context.Context) error
	// Interceptors run right around the kit's services, first to last.
	Interceptors []grpc.UnaryServerInterceptor
	// ControllerServices is called before Opened with a function that registers Controller and GroupController, which share locks and state with those that are served, with a further gRPC server: for a
	// driver whose processes hand calls to each other.
	ControllerServices func(register func(grpc.ServiceRegistrar))
	// Register registers further services.
	Register func(grpc.ServiceRegistrar)
	// State returns what /debug/state shows under "driver", as JSON; nil shows nothing. It must have no secrets.
	State func() any
	// Mounter makes bind mounts; nil is the kernel. Tests without privileges set mount.Fake.
	Mounter mount.Mounter
	// Filesystems makes and mounts file systems; nil is the kernel and the programs of the machine. Tests without privileges set filesystem.Fake.
	Filesystems filesystem.Filesystems
	// FaultPoint is called with the context of a call at each point at which a process may die with another effect, such as "NodeStageVolume:recorded". It may
	// panic, and the call then does nothing more. For crash tests, see package drivertest.
	FaultPoint func(ctx context.Context, point string)
}

// HTTP says where metrics, health and state are served.
type HTTP struct {
	// Endpoint is host:port of the listener; empty: none.
	Endpoint string
	// MetricsPath is the path of the metrics.
	MetricsPath string
	// Pprof adds profiles under /debug/pprof, and shows /debug/state to other hosts.
	Pprof bool
}

// shared is HTTP as all components of this project have it.
func (h *HTTP) shared() *flagset.HTTP {
	return &flagset.HTTP{Endpoint: h.Endpoint, MetricsPath: h.MetricsPath, Pprof: h.Pprof}
}

// NewOptions returns the defaults of a driver. Those of Endpoint, NodeID and StateDir come from the environment variables CSI_ENDPOINT, NODE_ID and
// STATE_DIR, if set.
func NewOptions(driverName string) Options {
	return Options{
		DriverName:  driverName,
		Endpoint:    cmp.Or(os.Getenv(envEndpoint), defaultEndpoint),
		Mode:        ModeAll,
		NodeID:      os.Getenv(envNodeID),
		StateDir:    cmp.Or(os.Getenv(envStateDir), "/var/lib/"+driverName),
		CallTimeout: defaultCallTimeout,
		StopTimeout: defaultStopTimeout,
		Registry:    procmetrics.NewRegistry(),
		HTTP:        HTTP{MetricsPath: flagset.NewHTTP().MetricsPath},
	}
}

// AddFlags registers the flags on fs, with the present values as defaults.
func (o *Options) AddFlags(fs *flag.FlagSet) {
	fs.StringVar(&o.DriverName, "drivername", o.DriverName, "`name` of the driver, as in CSIDriver objects")
	fs.StringVar(&o.Endpoint, "endpoint", o.Endpoint, "`address` that serves CSI: unix:///path, a bare path, or tcp://host:port (neither authenticated nor encrypted); the environment variable "+envEndpoint+" is the default")
	fs.Var((*modeValue)(&o.Mode), "mode", "`services` to serve: controller, node or all")
	fs.StringVar(&o.NodeID, "nodeid", o.NodeID, "`id` of this node, required unless --mode=controller; the environment variable "+envNodeID+" is the default")
	fs.Var((*topologyValue)(&o.Topology), "topology", "topology segment of this node as `key=value`; may be repeated")
	fs.Int64Var(&o.MaxVolumes, "maxvolumespernode", o.MaxVolumes, "greatest `number` of volumes per node that is reported; 0: no limit")
	fs.StringVar(&o.StateDir, "statedir", o.StateDir, "`directory` of the node's journal, which must outlive the process; the environment variable "+envStateDir+" is the default")
	fs.BoolVar(&o.VolumeCondition, "volume-condition", o.VolumeCondition, "report VolumeCondition of CSI v1.12 beside the health calls of v1.13, for kubelets up to Kubernetes 1.36")
	fs.DurationVar(&o.CallTimeout, "call-timeout", o.CallTimeout, "deadline of a call whose caller sets none")
	fs.DurationVar(&o.StopTimeout, "stop-timeout", o.StopTimeout, "grace period of running calls after a termination signal")
	fs.StringVar(&o.HTTP.Endpoint, "http-endpoint", o.HTTP.Endpoint, "`host:port` that serves metrics, health and state, for instance :8080; empty: no listener")
	fs.StringVar(&o.HTTP.MetricsPath, "metrics-path", o.HTTP.MetricsPath, "`path` of the metrics on the listener")
	fs.BoolVar(&o.HTTP.Pprof, "enable-pprof", o.HTTP.Pprof, "serve Go profiles under /debug/pprof/ of --http-endpoint, and /debug/state to other hosts than this one")
}

func (o *Options) controller() bool { return o.Mode == ModeAll || o.Mode == ModeController }
func (o *Options) node() bool       { return o.Mode == ModeAll || o.Mode == ModeNode }

// Validate reports everything that is wrong, at once.
func (o *Options) Validate() error {
	errs := []error{o.HTTP.shared().Validate()}
	if err := drivername.Validate(o.DriverName); err != nil {
		errs = append(errs, fmt.Errorf("--drivername: %w", err))
	}
	if o.Endpoint == "" {
		errs = append(errs, errors.New("--endpoint: must not be empty"))
	}
	if o.Mode != ModeAll && o.Mode != ModeController && o.Mode != ModeNode {
		errs = append(errs, fmt.Errorf("--mode=%q: must be %q, %q or %q", o.Mode, ModeController, ModeNode, ModeAll))
	}
	if o.node() && (!filepath.IsAbs(o.StateDir) || filepath.Clean(o.StateDir) == "/") {
		errs = append(errs, fmt.Errorf("--statedir=%q: must be an absolute path other than /", o.StateDir))
	}
	if o.MaxVolumes < 0 {
		errs = append(errs, fmt.Errorf("--maxvolumespernode=%d: must not be negative", o.MaxVolumes))
	}
	if o.CallTimeout <= 0 {
		errs = append(errs, fmt.Errorf("--call-timeout=%v: must be greater than zero", o.CallTimeout))
	}
	if o.StopTimeout <= 0 {
		errs = append(errs, fmt.Errorf("--stop-timeout=%v: must be greater than zero", o.StopTimeout))
	}
	return errors.Join(errs...)
}

// checkNode reports what a node lacks that only Driver.DescribeNode could add.
func (k *kit) checkNode() error {
	if k.driver.DescribeNode != nil {
		return nil
	}
	if k.NodeID == "" {
		return errors.New("--nodeid: is required for the node service")
	}
	for _, key := range k.TopologyKeys {
		if k.Topology[key] == "" {
			return fmt.Errorf("--topology: has no value for key %q; add --topology=%s=VALUE", key, key)
		}
	}
	return nil
}

// modeValue is the flag.Value of --mode.
type modeValue Mode

func (m *modeValue) String() string { return string(*m) }

func (m *modeValue) Set(text string) error {
	if !slices.Contains([]Mode{ModeAll, ModeController, ModeNode}, Mode(text)) {
		return fmt.Errorf("must be %q, %q or %q", ModeController, ModeNode, ModeAll)
	}
	*m = modeValue(text)
	return nil
}

// topologyValue is the flag.Value of --topology.
type topologyValue Segments

func (t *topologyValue) String() string { return Segments(*t).String() }

func (t *topologyValue) Set(text string) error {
	key, value, ok := strings.Cut(text, "=")
	if !ok || key == "" || value == "" {
		return errors.New("must be key=value")
	}
	if *t == nil {
		*t = topologyValue{}
	}
	(*t)[key] = value
	return nil
}
