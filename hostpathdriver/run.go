package hostpathdriver

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"k8s.io/klog/v2"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/extent"
	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/loop"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/driverkit/state"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/backend"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/leader"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// Run serves the driver until ctx ends, which is no error: running calls may end before it returns. The logger of ctx is used. Several instances can run in
// one process.
func Run(ctx context.Context, o Options) error {
	if err := o.Validate(); err != nil {
		return err
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
	logger := klog.FromContext(ctx)
	for _, warning := range o.Warnings() {
		logger.Info("Ignored a flag", logging.KeyReason, warning)
	}
	d := newDriver(o)
	err = d.serve(ctx)
	if d.Node != nil {
		d.Node.Close()
	}
	return errors.Join(err, d.candidate.Release())
}

var (
	_ driverkit.Backend               = (*driver)(nil)
	_ driverkit.Attacher              = (*driver)(nil)
	_ driverkit.Lister                = (*driver)(nil)
	_ driverkit.CapacityReporter      = (*driver)(nil)
	_ driverkit.Expander              = (*driver)(nil)
	_ driverkit.NodeExpander          = (*driver)(nil)
	_ driverkit.Modifier              = (*driver)(nil)
	_ driverkit.Cloner                = (*driver)(nil)
	_ driverkit.Validator             = (*driver)(nil)
	_ driverkit.SnapshotLister        = (*driver)(nil)
	_ driverkit.GroupSnapshotter      = (*driver)(nil)
	_ driverkit.BlockMetadataReporter = (*driver)(nil)
	_ driverkit.HealthReporter        = (*driver)(nil)
	_ driverkit.StorageHealthReporter = (*driver)(nil)
	_ driverkit.NodeDescriber         = (*driver)(nil)
	_ driverkit.MountOwner            = (*driver)(nil)
	_ driverkit.UsageReporter         = (*driver)(nil)
	_ driverkit.Inliner               = (*driver)(nil)
	_ driverkit.Prober                = (*driver)(nil)
	_ driverkit.ReadOnlyDevicer       = (*driver)(nil)
)

// driver is the driverkit.Backend: a Controller, a Node, or both, and what they have in common.
type driver struct {
	*backend.Controller
	*backend.Node
	backend.Health

	options   Options
	dir       *dirCheck
	candidate *leader.Candidate
	leading   sync.Mutex // of a node alone, see expandAlone
	// controller and groups are the services that other processes use.
	controller csi.ControllerServer
	groups     csi.GroupControllerServer
}

// newDriver makes a driver that has read nothing yet.
func newDriver(o Options) *driver {
	d := &driver{options: o, dir: newDirCheck(o.StateDir)}
	d.Config = &backend.Config{
		StateDir: o.StateDir, PoolDirs: o.PoolDirs, Pools: o.pools(), MaxSize: o.MaxVolumeSize, Attach: o.Attach,
		Mounter: o.Mounter, Devices: o.Devices, Filesystems: o.Filesystems, Step: o.step,
	}
	if o.node() {
		d.Config.NodeID = o.NodeID
	}
	d.Controller = backend.NewController(d.controllerConfig())
	register := d.registerController
	if !o.controller() {
		register = nil
	}
	d.candidate = leader.New(leader.Config{Dir: o.StateDir, Node: d.Config.NodeID, Open: d.Open, Close: d.Controller.Close, WithNode: backend.WithNode}, register)
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

// openNode opens the node. driverkit holds the lock of the node's directory.
func (d *driver) openNode(ctx context.Context) (err error) {
	o := d.options
	c := backend.NodeConfig{Config: *d.Config, MaxExpandSize: cmp.Or(o.MaxVolumeSizeNode, o.MaxVolumeSize), MaxVolumes: d.maxVolumes, ExpandUnasked: o.controllerExpansion() && !o.nodeExpansion()}
	if o.nodeOnlyExpansion() {
		c.Expand = d.expandAlone
	}
	d.Node, err = backend.OpenNode(ctx, c)
	return err
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

// Delete implements driverkit.Backend.
func (d *driver) Delete(ctx context.Context, req *driverkit.DeleteRequest) error {
	if req.Inline {
		return d.DeleteInline(ctx, req.ID)
	}
	return d.Controller.Delete(ctx, req)
}

// Probe implements driverkit.Prober: without the state directory no call can succeed.
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
	kit.Support = driverkit.Support{Block: true, MultiNode: true, FSTypes: volume.FSTypes()}
	if o.Topology {
		kit.TopologyKeys, kit.Topology = []string{volume.TopologyKey}, driverkit.Segments{volume.TopologyKey: o.NodeID}
	}
	kit.OfflineExpansion, kit.VolumeCondition, kit.HTTP, kit.Tracing = o.OfflineExpansion, o.VolumeCondition, o.HTTP, o.Tracing
	for name, without := range map[string]bool{
		"Attacher": !o.Attach, "Expander": !o.Expansion, "NodeExpander": !o.Expansion, "Modifier": !o.Modify, "SnapshotLister": !o.ListSnapshots,
		"Inliner": !o.Inline, "BlockMetadataReporter": !o.SnapshotMetadata,
	} {
		if without {
			kit.Without = append(kit.Without, name)
		}
	}
	kit.Interceptors = slices.Clone(o.interceptors)
	if o.controller() {
		kit.Interceptors = append(kit.Interceptors, d.candidate.Intercept)
	}
	kit.Services, kit.State = d.services, d.state
	kit.Mounter, kit.Filesystems = o.Mounter, o.Filesystems
	if o.step != nil {
		kit.FaultPoint = func(_ context.Context, point string) { o.step(point) }
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
			if err := d.openNode(ctx); err != nil {
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
	group.Go(func() error { return driverkit.Serve(ctx, kit, d) })
	return group.Wait()
}

// services notes the services that other processes use, and takes out of the others what flags switch off.
func (d *driver) services(s *driverkit.Services) {
	d.controller, d.groups = s.Controller, s.GroupController
	if d.options.nodeOnlyExpansion() && s.Controller != nil {
		s.Controller = withoutControllerExpansion{s.Controller}
	}
	if d.options.controllerExpansion() && !d.options.nodeExpansion() && s.Node != nil {
		s.Node = withoutNodeExpansion{s.Node}
	}
}

func (d *driver) registerController(r grpc.ServiceRegistrar) {
	csi.RegisterControllerServer(r, d.controller)
	csi.RegisterGroupControllerServer(r, d.groups)
}

// state is what /debug/state shows.
func (d *driver) state() any {
	if !d.options.controller() {
		return nil
	}
	return d.Config.Show()
}
