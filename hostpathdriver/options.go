package hostpathdriver

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/longshore-csi/longshore/csikit/drivername"
	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/backend"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
	"github.com/longshore-csi/longshore/hostpathdriver/loop"
)

// Mode selects the services of a process.
type Mode string

const (
	// ModeAll serves Identity, Controller and Node: each node has a driver of
	// its own, which makes volumes for that node.
	ModeAll Mode = "all"
	// ModeController serves Identity and Controller.
	ModeController Mode = "controller"
	// ModeNode serves Identity and Node.
	ModeNode Mode = "node"
)

const (
	// DefaultDriverName is the name that manifests of the hostpath driver use.
	DefaultDriverName = "hostpath.csi.k8s.io"
	// DefaultMaxVolumeSize is the largest volume in bytes: 1 TiB.
	DefaultMaxVolumeSize int64 = 1 << 40

	defaultEndpoint    = "unix:///tmp/csi.sock"
	defaultStateDir    = "/csi-data-dir"
	defaultCallTimeout = 2 * time.Minute
	defaultStopTimeout = 10 * time.Second
	// defaultReconcilePeriod is the pause between two looks of a node at the controllers' records of its staged disks: a read of a small file for each.
	defaultReconcilePeriod = time.Second

	randomAttachLimit = -1
)

// Mounter makes the mounts of the node service. The kernel's is the default;
// tests without privileges set Options.Mounter to another.
type Mounter = mount.Mounter

// Devices makes the devices of block volumes. The kernel's loop devices are
// the default; tests without privileges set Options.Devices to others.
type Devices = loop.Devices

// Filesystems makes and mounts file systems on devices. The programs of the
// machine are the default; tests without privileges set Options.Filesystems to
// others.
type Filesystems = filesystem.Filesystems

// Options configure one instance of the driver. Start from NewOptions.
type Options struct {
	// Endpoint is where CSI is served: unix:///path, a bare path, or
	// tcp://host:port, which has neither authentication nor encryption.
	Endpoint string
	// ProxyEndpoint, if it is not empty, is where a driver elsewhere makes connections, in the forms of Endpoint: Run then serves no CSI, but joins each
	// connection made to Endpoint with one made to ProxyEndpoint. All other options have no effect.
	ProxyEndpoint string
	// DriverName is the answer of GetPluginInfo, a domain name.
	DriverName string
	// StateDir holds volumes and records. Controllers and nodes may share it; a second one with the same NodeID is refused. Drivers of other names
	// have directories of their own in it, see state.Claim.
	StateDir string
	// NodeID names this node. Required unless Mode is ModeController.
	NodeID string
	// Mode selects the services.
	Mode Mode

	// Topology ties each volume to a node.
	Topology bool
	// Attach serves ControllerPublishVolume and ControllerUnpublishVolume.
	Attach bool
	// AttachLimit is the greatest number of volumes attached to a node. It
	// wins over MaxVolumesPerNode; zero leaves that in force. -1 reports a
	// random limit from 1 to 10 in each NodeGetInfo and enforces none.
	AttachLimit int64
	// MaxVolumesPerNode is the limit of volumes per node that NodeGetInfo
	// reports and ControllerPublishVolume enforces; zero is no limit.
	MaxVolumesPerNode int64
	// ProtectUsed refuses to delete a volume that is in use.
	ProtectUsed bool
	// MaxVolumeSize is the size in bytes of the largest volume.
	MaxVolumeSize int64
	// Inline serves inline volumes, besides persistent ones.
	Inline bool
	// MaxInlineSize is the size in bytes of the largest inline volume; zero is
	// that of MaxVolumeSize. InlinePools are the pools that inline volumes may
	// have, the first of them for those that name none; none is all.
	MaxInlineSize int64
	InlinePools   []string
	// Expansion makes volumes larger where asked for: in use or not or, with
	// OfflineExpansion, only where they are neither attached nor staged.
	Expansion, OfflineExpansion bool
	// NoControllerExpansion and NoNodeExpansion leave out one side of it. Without
	// the controller's side NodeExpandVolume does the whole expansion; a process of
	// ModeNode then needs the pools and limits of the controllers. Without the
	// node's side nodes expand devices and file systems in use by themselves.
	NoControllerExpansion, NoNodeExpansion bool
	// MaxVolumeSizeNode is the largest size in bytes to which a node lets a
	// volume grow; zero is that of MaxVolumeSize.
	MaxVolumeSizeNode int64
	// Modify serves ControllerModifyVolume: the parameter readAheadKiB sets the
	// read-ahead of devices and images. MutableParameters are the names of others that
	// are kept and have no effect; "*" is any name.
	Modify            bool
	MutableParameters []string
	// ListSnapshots serves the call of that name.
	ListSnapshots bool
	// SnapshotMetadata serves which blocks of a snapshot are allocated or have
	// changed, in blocks of one size or, with MetadataExtents, in ranges.
	SnapshotMetadata bool
	MetadataExtents  bool
	// VolumeCondition adds what CSI v1.12 had for the health calls of v1.13 to
	// answers: for kubelets up to Kubernetes 1.36.
	VolumeCondition bool
	// Capacity are pools: kind to size in bytes. None, with no PoolDirs either:
	// space is not accounted for.
	Capacity map[string]int64
	// PoolDirs are pools, too: kind to the absolute path of a directory, which
	// must exist, and which controllers and nodes have at the same path. Contents
	// of such a pool are in there and not in StateDir; its size, if Capacity gives
	// it none, is that of the disk.
	PoolDirs map[string]string

	// CallTimeout bounds calls whose caller sets no deadline.
	CallTimeout time.Duration
	// StopTimeout is how long running calls may go on at the end.
	StopTimeout time.Duration
	// HTTP serves metrics, health and state.
	HTTP flagset.HTTP
	// Tracing makes an OpenTelemetry span for each call with the tracer
	// provider of the process. It has no flag: hostpathplugin goes by the
	// environment, see package tracing of csikit, and another program that
	// embeds the driver installs a provider.
	Tracing bool
	// CallLog, if it is not nil, gets a line "gRPCCall: {...}" for each call that ends while the logger has verbosity 5 or more: method, request, response and
	// error as JSON with the field names of the specification. What reads the log of csi-driver-host-path, such as Kubernetes' CSI mock suite, learns from
	// it which calls the driver got. Secrets and tokens are left out, which csi-driver-host-path writes. hostpathplugin writes to its standard output.
	CallLog io.Writer
	// Mounter makes the mounts; nil is the kernel. For tests.
	Mounter Mounter
	// Devices makes devices of files; nil is the kernel. For tests.
	Devices Devices
	// Filesystems makes and mounts file systems; nil is the machine's programs
	// and kernel. For tests.
	Filesystems Filesystems

	// step, interceptors and reconcilePeriod are for crash tests: the first is called at fault points, the second run around all calls, the third is the pause
	// between two looks of a node at the controllers' records; zero is the default.
	step            backend.Step
	interceptors    []grpc.UnaryServerInterceptor
	reconcilePeriod time.Duration
	ignored         flagset.Ignored
}

// NewOptions returns the defaults.
func NewOptions() Options {
	return Options{
		Endpoint:      defaultEndpoint,
		DriverName:    DefaultDriverName,
		StateDir:      defaultStateDir,
		Mode:          ModeAll,
		Topology:      true,
		ProtectUsed:   true,
		MaxVolumeSize: DefaultMaxVolumeSize,
		Inline:        true,
		Expansion:     true,
		ListSnapshots: true,
		CallTimeout:   defaultCallTimeout,
		StopTimeout:   defaultStopTimeout,
		HTTP:          flagset.NewHTTP(),
	}
}

func (o *Options) controller() bool { return o.Mode == ModeAll || o.Mode == ModeController }
func (o *Options) node() bool       { return o.Mode == ModeAll || o.Mode == ModeNode }

// pools are the sizes of all pools.
func (o *Options) pools() *volume.Pools {
	sizes := maps.Clone(o.Capacity)
	for kind := range o.PoolDirs {
		if _, sized := sizes[kind]; sized {
			continue
		}
		if sizes == nil {
			sizes = map[string]int64{}
		}
		sizes[kind] = volume.Unlimited
	}
	return volume.NewPools(sizes)
}

func (o *Options) controllerExpansion() bool { return o.Expansion && !o.NoControllerExpansion }
func (o *Options) nodeExpansion() bool       { return o.Expansion && !o.NoNodeExpansion }
func (o *Options) nodeOnlyExpansion() bool   { return o.nodeExpansion() && !o.controllerExpansion() }

// Validate reports everything that is wrong, at once.
func (o *Options) Validate() error {
	if o.ProxyEndpoint != "" {
		return o.checkProxy()
	}
	errs := []error{o.checkMode(), o.checkDriverName(), o.checkStateDir(), o.checkPoolDirs(), o.checkLimits(), o.checkExpansion(), o.HTTP.Validate(), o.checkEndpoint()}
	if o.CallTimeout <= 0 {
		errs = append(errs, fmt.Errorf("--call-timeout=%v: must be greater than zero", o.CallTimeout))
	}
	if o.StopTimeout <= 0 {
		errs = append(errs, fmt.Errorf("--stop-timeout=%v: must be greater than zero", o.StopTimeout))
	}
	return errors.Join(errs...)
}

func (o *Options) checkEndpoint() error {
	if o.Endpoint == "" {
		return errors.New("--endpoint: must not be empty")
	}
	return nil
}

// checkProxy is Validate of a proxy. Other forms of endpoints are refused where they are bound.
func (o *Options) checkProxy() error {
	if o.ProxyEndpoint == o.Endpoint {
		return fmt.Errorf("--proxy-endpoint=%q: must not be that of --endpoint", o.ProxyEndpoint)
	}
	return o.checkEndpoint()
}

// Warnings returns a sentence for each flag that was given and has no effect,
// or is about to go.
func (o *Options) Warnings() []string {
	return flagset.Warnings(&o.ignored, &o.HTTP)
}

func (o *Options) checkMode() error {
	switch o.Mode {
	case ModeAll, ModeNode:
		return o.checkNodeID()
	case ModeController:
	default:
		return fmt.Errorf("--mode=%q: must be %q, %q or %q", o.Mode, ModeController, ModeNode, ModeAll)
	}
	return nil
}

// checkNodeID applies the rule for names of files, as the node has a
// directory, and with topology the rule for label values, as Kubernetes makes
// a label of the segment.
func (o *Options) checkNodeID() error {
	if err := volume.CheckNodeID(o.NodeID); err != nil {
		return fmt.Errorf("--nodeid: %w", err)
	}
	label := regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)
	if o.Topology && !label.MatchString(o.NodeID) {
		return fmt.Errorf("--nodeid=%q: must be at most 63 characters with a letter or digit at both ends, to be a topology value", o.NodeID)
	}
	return nil
}

// checkDriverName applies the rule that every sidecar applies to the name.
func (o *Options) checkDriverName() error {
	if err := drivername.Validate(o.DriverName); err != nil {
		return fmt.Errorf("--drivername: %w", err)
	}
	return nil
}

func (o *Options) checkStateDir() error {
	if !filepath.IsAbs(o.StateDir) || filepath.Clean(o.StateDir) == "/" {
		return fmt.Errorf("--statedir=%q: must be an absolute path other than /", o.StateDir)
	}
	return nil
}

// checkPoolDirs keeps apart what belongs to the driver and what to each pool.
func (o *Options) checkPoolDirs() error {
	var errs []error
	taken := map[string]string{"--statedir": o.StateDir}
	for _, kind := range slices.Sorted(maps.Keys(o.PoolDirs)) {
		dir := o.PoolDirs[kind]
		this := fmt.Sprintf("--pool=%s=%s", kind, dir)
		if kind == "" || !filepath.IsAbs(dir) || filepath.Clean(dir) == "/" {
			errs = append(errs, fmt.Errorf("%s: must have a kind and an absolute path other than /", this))
			continue
		}
		for _, other := range slices.Sorted(maps.Keys(taken)) {
			if inside(dir, taken[other]) || inside(taken[other], dir) {
				errs = append(errs, fmt.Errorf("%s: must neither be in the directory of %s nor contain it", this, other))
			}
		}
		taken[this] = dir
	}
	return errors.Join(errs...)
}

// inside reports whether a path is a directory or in it.
func inside(path, dir string) bool {
	relative, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(relative)
}

func (o *Options) checkLimits() error {
	var errs []error
	if o.AttachLimit < randomAttachLimit {
		errs = append(errs, fmt.Errorf("--attach-limit=%d: must be -1 or more", o.AttachLimit))
	}
	if o.MaxVolumesPerNode < 0 {
		errs = append(errs, fmt.Errorf("--maxvolumespernode=%d: must not be negative", o.MaxVolumesPerNode))
	}
	if o.MaxVolumeSize <= 0 {
		errs = append(errs, fmt.Errorf("--max-volume-size=%d: must be greater than zero", o.MaxVolumeSize))
	}
	if o.MaxInlineSize < 0 {
		errs = append(errs, fmt.Errorf("--max-inline-volume-size=%d: must not be negative", o.MaxInlineSize))
	}
	for _, pool := range o.InlinePools {
		if o.Capacity[pool] == 0 && o.PoolDirs[pool] == "" {
			errs = append(errs, fmt.Errorf("--inline-volume-pools: %q is no pool of --capacity or --pool", pool))
		}
	}
	if o.MaxVolumeSizeNode < 0 {
		errs = append(errs, fmt.Errorf("--max-volume-size-node=%d: must not be negative", o.MaxVolumeSizeNode))
	}
	for kind, size := range o.Capacity {
		if kind == "" || size < 0 {
			errs = append(errs, fmt.Errorf("--capacity=%s=%d: must have a kind and a size that is not negative", kind, size))
		}
	}
	return errors.Join(errs...)
}

// enforcedLimit is the limit of attachments per node; zero is none.
func (o *Options) enforcedLimit() int64 {
	switch {
	case o.AttachLimit > 0:
		return o.AttachLimit
	case o.AttachLimit == randomAttachLimit:
		return 0
	}
	return o.MaxVolumesPerNode
}

// checkExpansion refuses what no call could do: NodeExpandVolume is for volumes in
// use (CSI v1.13, "VolumeExpansion" OFFLINE requires ControllerExpandVolume).
func (o *Options) checkExpansion() error {
	if o.OfflineExpansion && o.nodeOnlyExpansion() {
		return fmt.Errorf("--volume-expansion-type=%s: needs ControllerExpandVolume; remove --disable-controller-expansion", expansionOffline)
	}
	return nil
}
