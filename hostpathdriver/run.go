package hostpathdriver

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/csiserver"
	"github.com/longshore-csi/longshore/csikit/httpserve"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/metrics"
	"github.com/longshore-csi/longshore/csikit/procmetrics"
	"github.com/longshore-csi/longshore/csikit/version"
	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/loop"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/driverkit/state"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/backend"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/extent"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/fill"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/grpcapi"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/idempotent"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/shared"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// Run serves the driver until ctx ends, which is no error: running calls may
// end before it returns. The logger of ctx is used. Several instances can run
// in one process.
func Run(ctx context.Context, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	// From here on paths are compared with those of the CO.
	o.StateDir = filepath.Clean(o.StateDir)
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
	logger := klog.FromContext(ctx).WithValues(logging.KeyDriver, o.DriverName)
	if o.node() {
		logger = logger.WithValues(logging.KeyNodeID, o.NodeID)
	}
	ctx = klog.NewContext(ctx, logger)
	for _, warning := range o.Warnings() {
		logger.Info("Ignored a flag", logging.KeyReason, warning)
	}
	d, err := open(ctx, o)
	if err != nil {
		return errors.Join(err, d.close(ctx))
	}
	return errors.Join(d.serve(ctx), d.close(ctx))
}

// driver is one running instance.
type driver struct {
	options     Options
	lock        *state.Lock
	services    []service
	directory   *shared.Directory
	volumes     *fill.Services
	node        *backend.Node
	nodeService volume.NodeService // node, one call at a time per volume
	registry    *prometheus.Registry
	stateDir    *dirCheck
}

// service is a gRPC service of package grpcapi.
type service interface {
	Register(r grpc.ServiceRegistrar)
}

// open takes the lock of the node and reads the state. The driver it returns
// with an error is to be closed, too.
func open(ctx context.Context, o Options) (*driver, error) {
	d := &driver{options: o, registry: procmetrics.NewRegistry(), stateDir: newDirCheck(o.StateDir)}
	pools := o.pools()
	if o.node() {
		lock, err := state.Acquire(backend.NodeLockPath(o.StateDir, o.NodeID), "node "+o.NodeID)
		if err != nil {
			return d, err
		}
		d.lock = lock
	}
	if o.controller() {
		if err := d.openController(ctx, pools); err != nil {
			return d, err
		}
	}
	if o.node() {
		if err := d.openNode(ctx, pools); err != nil {
			return d, err
		}
	}
	if o.controller() {
		d.serveController()
	}
	d.services = append(d.services, grpcapi.NewIdentity(grpcapi.IdentityConfig{
		Name:       o.DriverName,
		Version:    version.Get().Version,
		Controller: true,
		Topology:   o.Topology,
		Expansion:  o.controllerExpansion() || o.nodeExpansion(),
		Snapshots:  true,
		Groups:     true,
		Metadata:   o.SnapshotMetadata,
		Ready:      d.healthy,

		OfflineExpansion: o.OfflineExpansion,
	}))
	return d, nil
}

func (d *driver) openController(ctx context.Context, pools *volume.Pools) error {
	err := d.openDirectory(ctx, pools)
	if err == nil {
		d.volumes, err = fill.Open(ctx, fill.Config{Next: d.directory})
	}
	return err
}

// openDirectory opens the controller's side of the state directory.
func (d *driver) openDirectory(ctx context.Context, pools *volume.Pools) error {
	o := d.options
	// A controller alone serves the directories of every node; with a node
	// it serves this one.
	placement := volume.Placement{Enabled: o.Topology}
	if o.Mode == ModeAll {
		placement.Own = o.NodeID
	}
	var err error
	d.directory, err = shared.Open(ctx, shared.Config{
		LockPath: backend.ControllerLockPath(o.StateDir),
		Turn:     shared.DefaultTurn,
		Open: func(ctx context.Context) (volume.Services, shared.Store, error) {
			volumes, err := backend.OpenVolumes(ctx, backend.VolumesConfig{
				StateDir:    o.StateDir,
				PoolDirs:    o.PoolDirs,
				Placement:   placement,
				Pools:       pools,
				MaxSize:     o.MaxVolumeSize,
				Attach:      o.Attach,
				AttachLimit: int(o.enforcedLimit()),
				Mutable:     volume.Mutable{Enabled: o.Modify, Names: o.MutableParameters},
				ProtectUsed: o.ProtectUsed,
				Mounter:     o.Mounter,
				Step:        o.step,

				OfflineExpansion: o.OfflineExpansion,
			})
			return idempotent.New(volumes), volumes, err
		},
	})
	return err
}

// serveController makes the services of the controller side: a service has a
// statement here, which goes with its file.
func (d *driver) serveController() {
	o := d.options
	d.services = append(d.services, grpcapi.NewController(grpcapi.ControllerConfig{
		Service:       d.controllerService(),
		Snapshots:     d.volumes,
		ListSnapshots: o.ListSnapshots,

		Attach:        o.Attach,
		Expansion:     o.controllerExpansion(),
		NodeExpansion: o.nodeExpansion(),
		Modify:        o.Modify,
		Condition:     o.VolumeCondition,
	}))
	d.services = append(d.services, grpcapi.NewGroup(grpcapi.GroupConfig{Service: d.volumes}))
	if o.SnapshotMetadata {
		d.services = append(d.services, grpcapi.NewMetadata(grpcapi.MetadataConfig{
			Service:        extent.Source{Disk: d.snapshotDisk},
			VariableLength: o.MetadataExtents,
		}))
	}
}

// snapshotDisk finds the file of a snapshot.
func (d *driver) snapshotDisk(ctx context.Context, id volume.ID) (*volume.SnapshotDisk, error) {
	found, err := d.volumes.GetSnapshot(ctx, id)
	if err != nil {
		return nil, err
	}
	return backend.SnapshotDisk(d.options.StateDir, found), nil
}

func (d *driver) openNode(ctx context.Context, pools *volume.Pools) error {
	o := d.options
	var expand func(context.Context, *volume.ExpandRequest) (*volume.Volume, error)
	if o.nodeOnlyExpansion() {
		if d.directory == nil {
			// A controller's pools, which inline volumes are not charged to.
			if err := d.openDirectory(ctx, o.pools()); err != nil {
				return err
			}
		}
		expand = d.directory.Expand
	}
	node, err := backend.OpenNode(ctx, backend.NodeConfig{
		StateDir: o.StateDir,
		PoolDirs: o.PoolDirs,
		NodeID:   o.NodeID,
		Pools:    pools,
		MaxSize:  o.MaxVolumeSize,
		Attach:   o.Attach,
		Mounter:  o.Mounter,
		Devices:  o.Devices,
		Step:     o.step,

		Filesystems:   o.Filesystems,
		MaxExpandSize: cmp.Or(o.MaxVolumeSizeNode, o.MaxVolumeSize),
		ExpandVolume:  expand,

		ExpandOnReconcile: o.controllerExpansion() && !o.nodeExpansion(),
	})
	if err != nil {
		return err
	}
	d.node, d.nodeService = node, idempotent.NewNode(node)
	d.services = append(d.services, grpcapi.NewNode(grpcapi.NodeConfig{
		Service:    d.nodeService,
		NodeID:     o.NodeID,
		Topology:   o.Topology,
		Inline:     o.Inline,
		Expansion:  o.nodeExpansion(),
		Condition:  o.VolumeCondition,
		MaxVolumes: d.maxVolumes,
	}))
	return nil
}

// socketMode lets sidecars that do not run as root use the socket, by the
// group of its directory: the fsGroup of a pod.
const socketMode = 0o660

// serve runs the servers until ctx ends or one of them fails.
func (d *driver) serve(ctx context.Context) error {
	o := d.options
	measured := metrics.NewPluginCSI(d.registry)
	measured.SetDriverName(o.DriverName)
	server, err := csiserver.Listen(csiserver.Config{
		Endpoint:    o.Endpoint,
		SocketMode:  socketMode,
		CallTimeout: o.CallTimeout,
		StopTimeout: o.StopTimeout,
		Metrics:     measured,
		Tracing:     o.Tracing,
	}, d.register)
	if err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	if o.HTTP.Address() != "" {
		web, err := d.listenHTTP(ctx)
		if err != nil {
			return errors.Join(err, server.Close())
		}
		group.Go(func() error { return web.Run(groupCtx) })
	}
	if d.node != nil {
		group.Go(func() error { return d.reconcile(groupCtx) })
	}
	group.Go(func() error { return server.Run(groupCtx) })
	return group.Wait()
}

func (d *driver) register(r grpc.ServiceRegistrar) {
	if d.options.registrar != nil {
		r = d.options.registrar(r)
	}
	for _, s := range d.services {
		s.Register(r)
	}
}

func (d *driver) listenHTTP(ctx context.Context) (*httpserve.Server, error) {
	o := d.options
	return httpserve.Listen(httpserve.Config{
		Address:     o.HTTP.Address(),
		MetricsPath: o.HTTP.MetricsPath,
		Gatherer:    d.registry,
		Health:      d.healthy,
		Live:        map[string]func(context.Context) error{"state-directory": d.healthy},
		Ready:       map[string]func(context.Context) error{"state-directory": d.healthy},
		Pprof:       o.HTTP.Pprof,
		State:       d.state,
		Logger:      klog.FromContext(ctx),
	})
}

// healthy reports whether the state directory is there: without it no call can
// succeed.
func (d *driver) healthy(ctx context.Context) error { return d.stateDir.check(ctx) }

// snapshot is what /debug/state shows.
type snapshot struct {
	Mode      Mode                 `json:"mode"`
	Volumes   []*volume.Volume     `json:"volumes,omitempty"`
	Snapshots []*volume.Snapshot   `json:"snapshots,omitempty"`
	Mounts    []*volume.NodeVolume `json:"mounts,omitempty"`
	// Error says why there are no volumes to show.
	Error string `json:"error,omitempty"`
}

func (d *driver) state() any {
	shown := snapshot{Mode: d.options.Mode}
	if d.volumes != nil {
		ctx, cancel := context.WithTimeout(context.Background(), d.options.CallTimeout)
		defer cancel()
		if err := d.show(ctx, &shown); err != nil {
			shown.Error = err.Error()
		}
	}
	if d.node != nil {
		shown.Mounts = d.node.All()
	}
	return shown
}

// show adds volumes and snapshots.
func (d *driver) show(ctx context.Context, shown *snapshot) error {
	volumes, err := d.volumes.List(ctx, volume.ListRequest{})
	if err != nil {
		return err
	}
	snapshots, err := d.volumes.ListSnapshots(ctx, volume.SnapshotListRequest{})
	if err != nil {
		return err
	}
	shown.Volumes, shown.Snapshots = volumes.Volumes, snapshots.Snapshots
	return nil
}

func (d *driver) maxVolumes() int64 {
	const lowest, highest = 1, 10
	if d.options.AttachLimit == randomAttachLimit {
		return lowest + rand.Int64N(highest-lowest+1) // a number for tests, no secret
	}
	return d.options.enforcedLimit()
}

// close ends the use of the state directory: first the copies, which another
// process, or this one after a restart, goes on with.
func (d *driver) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.options.StopTimeout)
	defer cancel()
	var errs []error
	if d.volumes != nil {
		errs = append(errs, d.volumes.Close(ctx))
	}
	if d.directory != nil {
		errs = append(errs, d.directory.Close())
	}
	if d.lock != nil {
		errs = append(errs, d.lock.Release())
	}
	return errors.Join(errs...)
}
