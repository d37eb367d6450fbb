package provisioner

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/events"
	"github.com/longshore-csi/longshore/csikit/httpserve"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/kubemetrics"
	"github.com/longshore-csi/longshore/csikit/leader"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/metrics"
	"github.com/longshore-csi/longshore/csikit/procmetrics"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/csikit/version"
	"github.com/longshore-csi/longshore/provisioner/internal/capacity"
	"github.com/longshore-csi/longshore/provisioner/internal/controller"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapi"
	"github.com/longshore-csi/longshore/provisioner/internal/migration"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/topology"
)

// attributesTimeout is the deadline of the question whether the API server serves VolumeAttributesClasses.
const attributesTimeout = 10 * time.Second

// component is the name of the binary, in user agents and events.
const component = "csi-provisioner"

// errReshaped ends the work of a controller whose driver came back with other capabilities.
var errReshaped = fmt.Errorf("the driver's capabilities or topology have changed: %w", controller.ErrSucceeded)

// Run provisions for the driver at o.CSI.Address until ctx ends, which is no error. It returns early when
// the lease is lost, or when what it needs cannot be had; it never ends the process. The options must be
// valid. The logger is that of the context.
func Run(ctx context.Context, o Options) error {
	logger := klog.FromContext(ctx)
	logger.Info("Starting", logging.KeyComponent, component, logging.KeyVersion, version.Get().String())
	for _, warning := range o.Warnings() {
		logger.Info("Flag needs attention", logging.KeyReason, warning)
	}
	registry := procmetrics.NewRegistry()
	config, err := kube.Config(o.Kube, component+"/"+version.Get().Version)
	if err != nil {
		return err
	}
	config.Wrap(kubemetrics.NewRest(registry).Wrap)
	client, err := kube.New(config)
	if err != nil {
		return err
	}
	api, err := kubeapi.New(kubeapi.Config{REST: config, Others: client, CapacityQPS: o.Capacity.QPS, CapacityBurst: o.Capacity.Burst})
	if err != nil {
		return err
	}
	driver, err := csiclient.New(csiclient.Config{
		Address:  o.CSI.Address,
		Timeout:  o.CSI.Timeout,
		Services: csiclient.ControllerService,
		Metrics:  callMetrics(registry),
	})
	if err != nil {
		return err
	}
	env := environment{kube: api, driver: driver, registry: registry, identity: fmt.Sprintf("%d-%d", time.Now().UnixMilli(), rand.IntN(10000))}
	return errors.Join(run(ctx, o, env), driver.Close())
}

// callMetrics measures the calls to the driver, apart for volumes of an in-tree plugin if the driver replaces one.
func callMetrics(registry *prometheus.Registry) *metrics.CSI {
	return metrics.NewSidecarCSI(registry, metrics.ForMigration(func(driver string) bool { return migration.Of(driver).Name() != "" }))
}

// environment is what an instance is connected to.
type environment struct {
	kube     kubeapi.Client
	driver   *csiclient.Client
	registry *prometheus.Registry
	// identity identifies this process in what it makes.
	identity string
	// host identifies it among those that compete for the lease; empty: the name of the host.
	host string
}

// instance is one running provisioner.
type instance struct {
	environment
	options Options
	// journal has the volumes in progress.
	journal  *journal.Journal
	queues   *kubemetrics.Queues
	leading  *kubemetrics.Leader
	metrics  *controller.Metrics
	health   leader.Health
	recorder *events.Async
	// counts measures the CSIStorageCapacity objects, owner owns them.
	counts *capacity.Metrics
	owner  *metav1.OwnerReference
	// attachDenied logs once that the CSIDriver object may not be read.
	attachDenied sync.Once

	// mu guards what follows.
	mu sync.Mutex
	// noAttributes says that the API server does not serve VolumeAttributesClasses.
	noAttributes bool
	// skipAttach says that the CSIDriver object has attachRequired false.
	skipAttach bool
	// current is the controller at work, and currentView what it knows; nil while there is none.
	current     *controller.Controller
	currentView *view.View
	// shape is the shape that current was made for.
	shape view.Shape
	// reshape ends the work of current.
	reshape context.CancelCauseFunc
	// segment is that of the node, for an instance that provisions for one node; currentSegment is the one that current
	// was made for.
	segment, currentSegment topology.Segment
	// standby is what was prepared while the instance waited for the lease; nil when there is nothing or it was used.
	standby *standby
}

// newInstance returns an instance that is not running yet.
func newInstance(o Options, env environment) *instance {
	p := &instance{
		environment: env,
		options:     o,
		journal:     journal.New(),
		queues:      kubemetrics.NewQueues(env.registry),
		leading:     kubemetrics.NewLeader(env.registry),
		metrics:     controller.NewMetrics(env.registry),
		counts:      capacity.NewMetrics(),
	}
	env.registry.MustRegister(controller.NewUnderWay(p.journal))
	if o.Capacity.Enabled {
		env.registry.MustRegister(p.counts)
	}
	return p
}

// run provisions with what env is connected to.
func run(ctx context.Context, o Options, env environment) error {
	p := newInstance(o, env)
	server, err := p.listen(klog.FromContext(ctx))
	if err != nil {
		return err
	}
	return p.serve(ctx, server)
}

// serve runs the HTTP endpoint for as long as everything else runs; its failure ends all.
func (p *instance) serve(ctx context.Context, server *httpserve.Server) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	outlive, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var serving errgroup.Group
	if server != nil {
		serving.Go(func() error {
			err := server.Run(outlive)
			if err != nil {
				cancel(err)
			}
			return err
		})
	}
	err := p.connect(ctx)
	stop()
	return errors.Join(err, serving.Wait())
}

// connect waits for the driver, then works and follows its restarts.
func (p *instance) connect(ctx context.Context) error {
	info, err := p.driver.Wait(ctx)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	if err := p.locate(ctx, info); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer cancel()
		return p.follow(ctx, info.Name)
	})
	group.Go(func() error {
		defer cancel()
		return p.elect(ctx, info.Name)
	})
	return group.Wait()
}

// follow reacts to a driver that returns with other capabilities, or in another segment.
func (p *instance) follow(ctx context.Context, name string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err := p.driver.Run(ctx, func(info *csiclient.Info) {
		if info.Name != name {
			cancel(fmt.Errorf("driver at %q: was %q, is now %q: a provisioner serves one driver", p.options.CSI.Address, name, info.Name))
			return
		}
		if err := p.locate(ctx, info); err != nil {
			cancel(err)
			return
		}
		p.findAttach(ctx, info)
		p.driverIsBack(info)
	})
	if cause := context.Cause(ctx); err == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// driverIsBack has claims and volumes reconciled again, by a new controller if other objects must be
// watched now.
func (p *instance) driverIsBack(info *csiclient.Info) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.current == nil:
	case controller.ShapeOf(info, p.features()) != p.shape, p.segment != p.currentSegment:
		p.reshape(errReshaped)
	default:
		p.current.Requeue()
	}
}

// elect works as soon as this instance leads.
func (p *instance) elect(ctx context.Context, driver string) error {
	recorder, err := events.NewRecorder(events.Config{Client: p.kube, Component: driver, Host: p.eventHost(), Registerer: p.registry})
	if err != nil {
		return fmt.Errorf("make event recorder: %w", err)
	}
	p.recorder = recorder
	outlive, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var recording errgroup.Group
	recording.Go(func() error { return recorder.Run(outlive) })
	err = p.lead(ctx, driver)
	stop()
	return errors.Join(err, recording.Wait())
}

// eventHost returns what identifies the events of this instance.
func (p *instance) eventHost() string {
	if p.options.Node.Enabled {
		return p.options.Node.Name
	}
	return p.host
}

// lead competes for the lease, if there is one.
func (p *instance) lead(ctx context.Context, driver string) error {
	election := p.options.LeaderElection
	if !election.Enabled {
		return p.provision(ctx)
	}
	stop := p.prepare(ctx)
	defer stop()
	return leader.Run(ctx, leader.Config{
		Client:        p.kube,
		Namespace:     election.Namespace,
		Name:          leader.SanitizeName(driver),
		Identity:      p.host,
		Labels:        election.Labels,
		LeaseDuration: election.LeaseDuration,
		RenewDeadline: election.RenewDeadline,
		RetryPeriod:   election.RetryPeriod,
		Metrics:       p.leading,
		Health:        &p.health,
		Recorder:      p.recorder,
	}, p.provision)
}

// provision runs one controller after the other, until ctx ends.
func (p *instance) provision(ctx context.Context) error {
	for {
		session, end := context.WithCancelCause(ctx)
		err := p.session(session, end)
		reshaped := errors.Is(context.Cause(session), errReshaped)
		end(nil)
		if ctx.Err() != nil {
			return withoutCancel(err)
		}
		if !reshaped {
			return err
		}
		klog.FromContext(ctx).Info("Starting again, the driver has other capabilities or another topology now")
	}
}

// withoutCancel drops an error that says nothing but that the context ended.
func withoutCancel(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, leader.ErrLost) {
		return nil
	}
	return err
}

// session runs one controller, made for the present capabilities of the driver.
func (p *instance) session(ctx context.Context, end context.CancelCauseFunc) error {
	if err := p.findOwner(ctx); err != nil {
		return err
	}
	p.findAttributes(ctx)
	p.findAttach(ctx, p.driver.Info())
	defer p.startJournal(ctx)()
	w, err := p.begin(end)
	if err != nil {
		return err
	}
	defer p.finish()
	stop := w.start(ctx)
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return w.controller.Run(ctx) })
	if w.capacity != nil {
		p.counts.Watch(w.capacity)
		defer p.counts.Watch(nil)
		group.Go(func() error { return w.capacity.Run(ctx) })
	}
	return group.Wait()
}

// work is what one session runs.
type work struct {
	view *view.View
	// start starts the view, if it does not run yet, and returns what stops it.
	start      func(context.Context) (stop func())
	controller *controller.Controller
	// capacity is nil when no capacity is published.
	capacity *capacity.Controller
}

// begin makes the controllers of a session and notes what they were made for.
func (p *instance) begin(end context.CancelCauseFunc) (work, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// One and the same reading of the capabilities decides about shape and controller.
	info := p.driver.Info()
	known := p.viewConfig(info)
	var w work
	w.view, w.start = p.viewFor(known)
	var observer controller.Capacity
	if p.options.Capacity.Enabled {
		publisher, err := capacity.New(capacity.Config{
			Info: p.driver.Info, Client: p.driver.Controller(), Kube: p.kube, Source: w.view,
			Queues: p.queues, Ages: p.registry, Settings: p.capacitySettings(),
		})
		if err != nil {
			return work{}, err
		}
		w.capacity, observer = publisher, publisher
	}
	current, err := controller.New(controller.Config{
		Info:     p.driver.Info,
		Driver:   p.driver.Controller(),
		Kube:     p.kube,
		View:     w.view,
		Plugin:   known.Plugin,
		Capacity: observer,
		Events:   p.recorder,
		Journal:  p.journal,
		Queues:   p.queues,
		Ages:     p.registry,
		Metrics:  p.metrics,
		Settings: p.settings(info.Name),
	})
	if err != nil {
		return work{}, err
	}
	w.controller = current
	p.current, p.currentView, p.shape, p.currentSegment, p.reshape = current, w.view, controller.ShapeOf(info, p.features()), p.segment, end
	return w, nil
}

// viewConfig returns what is watched for a driver, and what is kept of it. p.mu must be held.
func (p *instance) viewConfig(info *csiclient.Info) view.Config {
	return view.Config{
		Kube:          p.kube,
		Driver:        info.Name,
		Plugin:        migration.Of(info.Name),
		Shape:         controller.ShapeOf(info, p.features()),
		Node:          p.options.Node.node(p.segment).Node,
		Naming:        p.options.naming(),
		SnapshotSweep: p.options.SnapshotSweepInterval,
		KeepAffinity:  p.options.Capacity.Enabled,
	}
}

// finish forgets the controller.
func (p *instance) finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.current, p.currentView, p.reshape = nil, nil, nil
}

// startJournal has volumes in progress recorded in a Lease beside the one of the election, and opens those of the process before.
func (p *instance) startJournal(ctx context.Context) (stop func()) {
	driver := p.driver.Info().Name
	cfg := journal.Config{
		Leases:   p.kube.Leases(leader.Namespace(p.options.LeaderElection.Namespace)),
		Name:     leader.SanitizeName(driver) + "-journal",
		Identity: p.identity,
		Labels:   p.options.LeaderElection.Labels,
		Settle:   controller.SettlePeriod(p.options.CSI.Timeout),
		Adopted:  p.adopted,
		Report:   p.reportJournal,
	}
	if term, ok := leader.TermOf(ctx); ok {
		cfg.Term = journal.Term(term)
	}
	if p.options.Node.Enabled {
		cfg.Name, cfg.Owner = cfg.Name+"-"+p.options.Node.Name, p.nodeOwner(ctx)
	}
	return p.journal.Start(ctx, cfg)
}

// adopted goes on with volumes whose records could not be read when the session began.
func (p *instance) adopted(volumes []journal.Intent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current != nil {
		p.current.Resume(volumes)
	}
}

// reportJournal tells administrators that volumes in progress are not recorded.
func (p *instance) reportJournal(why error) {
	if why == nil {
		return
	}
	p.recorder.Warning(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: p.driver.Info().Name}}, "JournalNotWritten",
		fmt.Sprintf("Volumes in progress are not recorded, so that one may be left in the storage system if its claim is deleted while csi-provisioner is killed. Allow get, create and update of leases: %v", why))
}

// nodeOwner returns the reference that has the garbage collector delete the records of a node that is gone: with it go its volumes. nil: the Node cannot be read.
func (p *instance) nodeOwner(ctx context.Context) *metav1.OwnerReference {
	getCtx, cancel := context.WithTimeout(ctx, attributesTimeout)
	defer cancel()
	node, err := p.kube.Nodes().Get(getCtx, p.options.Node.Name, metav1.GetOptions{})
	if err != nil {
		klog.FromContext(ctx).Info("Lease of volumes in progress gets no owner, and stays when the node is gone", logging.KeyReason, err.Error())
		return nil
	}
	return &metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
}

// findAttributes finds out whether the API server serves VolumeAttributesClasses, which Kubernetes does from 1.34 on. Without
// them the feature is off, unless the user has set its gate.
func (p *instance) findAttributes(ctx context.Context) {
	if p.options.Features.Explicit(GateVolumeAttributesClass) {
		return
	}
	getCtx, cancel := context.WithTimeout(ctx, attributesTimeout)
	defer cancel()
	_, err := p.kube.VolumeAttributesClasses().Get(getCtx, "any", metav1.GetOptions{})
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.noAttributes
	p.noAttributes = snapshotapi.IsAbsent(err)
	if p.noAttributes && !known {
		klog.FromContext(ctx).Info("VolumeAttributesClasses of claims are ignored, the API server does not serve storage.k8s.io/v1 VolumeAttributesClasses")
	}
}
