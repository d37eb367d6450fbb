package hostpathdriver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/csikit/csiserver"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/driverkit/state"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/backend"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/extent"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/leader"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/proxy"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
	"github.com/longshore-csi/longshore/hostpathdriver/loop"
)

// Run serves the driver until ctx ends, which is no error: running calls may end before it returns. The logger of ctx is used. Several instances can run in
// one process.
func Run(ctx context.Context, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	logger := klog.FromContext(ctx)
	for _, warning := range o.Warnings() {
		logger.Info("Ignored a flag", logging.KeyReason, warning)
	}
	if o.ProxyEndpoint != "" {
		return runProxy(ctx, o)
	}
	var err error
	if o.StateDir, err = state.Claim(filepath.Clean(o.StateDir), o.DriverName); err != nil {
		return err
	}
	o.PoolDirs = maps.Clone(o.PoolDirs)
	for kind, dir := range o.PoolDirs {
		o.PoolDirs[kind] = filepath.Clean(dir)
	}
	if o.Mounter == nil {
		o.Mounter = mount.Kernel{}
	}
	if o.Devices == nil {
		o.Devices = loop.Kernel{}
	}
	if o.Filesystems == nil {
		o.Filesystems = filesystem.NewKernel()
	}
	d := newDriver(o)
	err = d.serve(ctx)
	return errors.Join(err, d.candidate.Release())
}

// runProxy is Run in a process that is no driver. Its sockets are open to their group, like that of a driver, as sidecars need not be root.
func runProxy(ctx context.Context, o Options) error {
	const mode = 0o660
	clients, err := csiserver.Bind(o.Endpoint, mode)
	if err != nil {
		return fmt.Errorf("--endpoint: %w", err)
	}
	drivers, err := csiserver.Bind(o.ProxyEndpoint, mode)
	if err != nil {
		return errors.Join(fmt.Errorf("--proxy-endpoint: %w", err), clients.Close())
	}
	klog.FromContext(ctx).Info("Joining connections to the endpoint with those of a driver", logging.KeyEndpoint, clients.Addr(), logging.KeyAddress, drivers.Addr())
	return proxy.Run(ctx, clients, drivers)
}

// driver is a Controller and a Node, of which a process uses one or both, and what they have in common.
type driver struct {
	*backend.Controller
	*backend.Node
	backend.Health

	options   Options
	dir       *dirCheck
	candidate *leader.Candidate
	leading   sync.Mutex // of a node alone, see expandAlone
	// register registers the services that other processes use.
	register func(grpc.ServiceRegistrar)
}

// newDriver makes a driver that has read nothing yet.
func newDriver(o Options) *driver {
	d := &driver{options: o, dir: newDirCheck(o.StateDir)}
	d.Config = &backend.Config{
		StateDir: o.StateDir, PoolDirs: o.PoolDirs, Pools: o.pools(), MaxSize: o.MaxVolumeSize, MaxInlineSize: o.MaxInlineSize, InlinePools: o.InlinePools, Attach: o.Attach,
		Mounter: o.Mounter, Devices: o.Devices, Filesystems: o.Filesystems, Step: o.step,
	}
	if o.node() {
		d.Config.NodeID = o.NodeID
	}
	d.Controller = backend.NewController(d.controllerConfig())
	d.Node = backend.NewNode(d.nodeConfig())
	register := func(r grpc.ServiceRegistrar) { d.register(r) }
	if !o.controller() {
		register = nil
	}
	d.candidate = leader.New(leader.Config{Dir: o.StateDir, Node: d.Config.NodeID, Open: d.Controller.Open, Close: d.Controller.Close, WithNode: backend.WithNode}, register)
	return d
}

func (d *driver) controllerConfig() backend.ControllerConfig {
	o := d.options
	c := backend.ControllerConfig{
		Config: *d.Config, Topology: o.Topology, AttachLimit: int(o.enforcedLimit()), Mutable: volume.Mutable{Enabled: o.Modify, Names: o.MutableParameters},
		ProtectUsed: o.ProtectUsed, OfflineExpansion: o.OfflineExpansion, NodeExpansion: o.nodeExpansion(), BlockSize: extent.BlockSize,
	}
	if o.MetadataExtents {
		c.BlockSize = 0
	}
	if o.Mode == ModeAll {
		c.Changed = func(ctx context.Context, id string) error { return d.Reconcile(ctx, id) }
	}
	if o.Mode == ModeNode {
		c.NodeID = "" // It acts for the controllers, see expandAlone.
	}
	return c
}

func (d *driver) nodeConfig() backend.NodeConfig {
	o := d.options
	c := backend.NodeConfig{Config: *d.Config, MaxExpandSize: cmp.Or(o.MaxVolumeSizeNode, o.MaxVolumeSize), MaxVolumes: d.maxVolumes, ExpandUnasked: o.controllerExpansion() && !o.nodeExpansion()}
	if o.nodeOnlyExpansion() {
		c.Expand = d.expandAlone
	}
	return c
}

// expandAlone is the controller's part of an expansion that the CO asks the node alone for.
func (d *driver) expandAlone(ctx context.Context, req *driverkit.ExpandRequest) error {
	if !d.options.controller() {
		d.leading.Lock() // Another call must not end the lead that this one may get.
		defer d.leading.Unlock()
	}
	_, here, err := d.candidate.Call(ctx, csi.Controller_ControllerExpandVolume_FullMethodName, &csi.ControllerExpandVolumeRequest{
		VolumeId: req.ID, CapacityRange: &csi.CapacityRange{RequiredBytes: req.Size.Required, LimitBytes: req.Size.Limit},
	})
	if !here || err != nil {
		return err
	}
	_, err = d.Expand(ctx, req)
	if !d.options.controller() { // The controllers are other processes.
		err = errors.Join(err, d.candidate.Release())
	}
	return err
}

// withoutControllerExpansion answers calls of a CO for volumes that are expanded by nodes alone. Nodes have their controller do its part, see expandAlone.
func withoutControllerExpansion(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if info.FullMethod == csi.Controller_ControllerExpandVolume_FullMethodName {
		return nil, status.Error(codes.Unimplemented, "ControllerExpandVolume is switched off by --disable-controller-expansion")
	}
	return handle(ctx, req)
}

// CreateInline implements driverkit.Inliner. Volumes that exist can be deleted when inline volumes are switched off.
func (d *driver) CreateInline(ctx context.Context, req *driverkit.InlineRequest) (*driverkit.Inlined, error) {
	if !d.options.Inline {
		return nil, fmt.Errorf("inline volume %q: inline volumes are switched off; remove Ephemeral from the volumeLifecycleModes of the CSIDriver: %w", req.ID, driverkit.ErrInvalid)
	}
	return d.Node.CreateInline(ctx, req)
}

// Probe looks at the state directory, without which no call can succeed.
func (d *driver) Probe(ctx context.Context) error { return d.dir.check(ctx) }

func (d *driver) maxVolumes() int64 {
	const lowest, highest = 1, 10
	if d.options.AttachLimit == randomAttachLimit {
		return lowest + rand.Int64N(highest-lowest+1) // A number for tests, no secret.
	}
	return d.options.enforcedLimit()
}

// kitOptions are those of driverkit.
func (d *driver) kitOptions() driverkit.Options {
	o := d.options
	kit := driverkit.NewOptions(o.DriverName)
	kit.Endpoint, kit.Mode, kit.NodeID, kit.CallTimeout, kit.StopTimeout = o.Endpoint, driverkit.Mode(o.Mode), o.NodeID, o.CallTimeout, o.StopTimeout
	kit.StateDir = backend.NodeDir(o.StateDir, cmp.Or(d.Config.NodeID, "none"))
	kit.OwnDirs = append(slices.Sorted(maps.Values(o.PoolDirs)), o.StateDir)
	kit.Support = driverkit.Support{
		Block: true, MultiNode: true, FSTypes: volume.FSTypes(), Clones: true, NoControllerExpansion: o.nodeOnlyExpansion(), NoNodeExpansion: !o.nodeExpansion(),
	}
	if o.Topology {
		kit.TopologyKeys, kit.Topology = []string{volume.TopologyKey}, driverkit.Segments{volume.TopologyKey: o.NodeID}
	}
	kit.OfflineExpansion, kit.VolumeCondition, kit.Tracing = o.OfflineExpansion, o.VolumeCondition, o.Tracing
	kit.HTTP = driverkit.HTTP{Endpoint: o.HTTP.Address(), MetricsPath: o.HTTP.MetricsPath, Pprof: o.HTTP.Pprof}
	if o.CallLog != nil {
		kit.Interceptors = append(kit.Interceptors, callLog(o.CallLog))
	}
	kit.Interceptors = append(kit.Interceptors, o.interceptors...)
	if o.nodeOnlyExpansion() {
		kit.Interceptors = append(kit.Interceptors, withoutControllerExpansion)
	}
	if o.controller() {
		kit.Interceptors = append(kit.Interceptors, d.candidate.Intercept)
	}
	kit.State = d.state
	kit.ControllerServices = func(register func(grpc.ServiceRegistrar)) { d.register = register }
	kit.Mounter, kit.Filesystems = o.Mounter, o.Filesystems
	if o.step != nil {
		kit.FaultPoint = func(_ context.Context, point string) { o.step(point) }
	}
	return kit
}

// kitDriver is the driver as driverkit has it: flags leave parts out.
func (d *driver) kitDriver() driverkit.Driver {
	o := d.options
	kit := driverkit.Driver{
		Provisioner: d, Stager: d, Snapshotter: d, GroupSnapshotter: d, Inliner: d,
		List: d.List, Capacity: d.Capacity, Validate: d.Validate, VolumeHealth: d.VolumeHealth, StorageHealth: d.StorageHealth, Probe: d.Probe,
		DescribeNode: d.DescribeNode, ReadOnlyDevice: d.ReadOnlyDevice, Usage: d.Usage, OwnsMount: d.OwnsMount,
	}
	if o.Attach {
		kit.Attacher = d
	}
	if o.Expansion {
		kit.Expand, kit.ExpandOnNode = d.Expand, d.ExpandOnNode
	}
	if o.Modify {
		kit.Modify = d.Modify
	}
	if o.ListSnapshots {
		kit.ListSnapshots = d.ListSnapshots
	}
	if o.SnapshotMetadata {
		kit.Blocks = d.Blocks
	}
	return kit
}

// serve runs the servers until ctx ends or one of them fails.
func (d *driver) serve(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	o := d.options
	kit := d.kitOptions()
	kit.Opened = func(ctx context.Context) error {
		if o.node() {
			if err := d.Node.Open(ctx); err != nil {
				return err
			}
			group.Go(func() error {
				d.Watch(ctx, cmp.Or(o.reconcilePeriod, defaultReconcilePeriod))
				return nil
			})
		}
		if o.controller() {
			if _, err := d.candidate.TryLead(ctx); err != nil {
				return err
			}
			group.Go(func() error { return d.candidate.Run(ctx) })
		}
		return nil
	}
	group.Go(func() error { return driverkit.Serve(ctx, kit, d.kitDriver()) })
	err := group.Wait()
	if o.node() {
		d.Node.Close()
	}
	return err
}

// state is what /debug/state shows.
func (d *driver) state() any {
	if !d.options.controller() {
		return nil
	}
	return d.Config.Show()
}
