// Package agent puts the parts of the node agent together and starts them in the right order.
//
// It decides nothing by itself: what is done for pods is in package pods, for volumes in package
// volume, for the Node in package nodeobj. Flags and credentials are the root package's.
package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/longshore-csi/longshore/csikit/events"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/kubeletplugin"
	"github.com/longshore-csi/longshore/kubeletplugin/fault"
	"github.com/longshore-csi/longshore/kubeletplugin/kubeapi"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
	"github.com/longshore-csi/longshore/kubeletplugin/resolve"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
	"github.com/longshore-csi/longshore/nodeagent/internal/inuse"
	"github.com/longshore-csi/longshore/nodeagent/internal/lease"
	"github.com/longshore-csi/longshore/nodeagent/internal/nodeinfo"
	"github.com/longshore-csi/longshore/nodeagent/internal/nodeobj"
	"github.com/longshore-csi/longshore/nodeagent/internal/pods"
	"github.com/longshore-csi/longshore/nodeagent/internal/selfattach"
)

// Config says what an Agent works with.
type Config struct {
	// Client acts as the node.
	Client kube.Client
	// Root is the kubelet's root directory.
	Root layout.Root
	// Template describes the node; it has its name.
	Template nodeobj.Template
	// SelfAttach has the agent attach volumes itself, with attachments of these names; empty: the attach/detach controller does it.
	SelfAttach selfattach.Naming
	// Allowed are the drivers that inline volumes may name.
	Allowed resolve.AllowedDrivers
	// Mounts lists mount points; nil means those of the host.
	Mounts volume.MountTable
	// FileLabel is that of kubeletplugin.Config.
	FileLabel func(*corev1.SELinuxOptions) string
	// DialDriver connects to a driver's endpoint; nil means gRPC over its socket.
	DialDriver func(endpoint string) (grpc.ClientConnInterface, error)
	// Inotify is an inotify instance to share with other agents of the process; nil for one of its own.
	Inotify *kubeletplugin.Inotify
	// Watches are to share with other agents, and the caller runs them; nil for watches of its own.
	Watches *Watches
	// Drivers are those that no registrar announces: they run in this process, or elsewhere at a socket.
	Drivers []Driver
	// Collision says what happens if a topology label has another value already.
	Collision nodeinfo.Collision
	// Linger is how long a driver that has deregistered keeps its entry in the CSINode; no time if zero.
	Linger time.Duration
	// CSITimeout is the deadline of one operation on a volume; that of kubeletplugin.Config if zero.
	CSITimeout time.Duration
	// StatusFrequency is how often the node's status is computed.
	StatusFrequency time.Duration
	// LeaseDuration is how long the node counts as alive after a renewal.
	LeaseDuration time.Duration
	// SyncFrequency is how often each pod is checked although nothing has changed, the claim of each published volume is looked at for
	// an expansion, and NodePublishVolume is repeated for drivers that want it.
	SyncFrequency time.Duration
	// StatsPeriod is how often drivers are asked for the usage and the health of each volume; 1 minute if zero, never if negative.
	StatsPeriod time.Duration
	// VolumeHealth reports the health of volumes and storage in the status of pods and of the CSINode, as a kubelet of 1.37 does with the feature gate
	// CSIVolumeHealth, and not by events.
	VolumeHealth bool
	// SweepInterval is how often the directories of pods that are gone are looked for; 1 minute if zero.
	SweepInterval time.Duration
	// Workers is the maximum number of pods processed concurrently.
	Workers int
	// Registerer and Queues receive metrics; nil for none.
	Registerer prometheus.Registerer
	Queues     workqueue.MetricsProvider
	// Fault stops the work at named points in crash tests.
	Fault fault.Hook
}

// Agent is one node.
type Agent struct {
	cfg     Config
	watches *Watches

	view      *nodeobj.View
	keeper    *nodeobj.Keeper
	renewer   *lease.Renewer
	inUse     *inuse.Publisher
	self      *selfattach.Attacher // nil if the attach/detach controller attaches
	info      *nodeinfo.Writer
	limits    *nodeinfo.Refresher
	storage   *storageHealth // nil if Config.VolumeHealth is not set
	events    *events.Async
	plugin    *kubeletplugin.Plugin
	pods      *pods.Controller
	orphans   *orphans
	recovered *volume.Found
	// seeded are the names kept in volumesInUse for the sake of unknown volumes.
	seeded []string
	// unknown has the problem last reported for each path of an unknown volume.
	unknown map[string]string
}

// New makes an Agent that has done nothing yet.
func New(cfg Config) (*Agent, error) {
	if cfg.Client == nil || cfg.Root == "" {
		return nil, errors.New("configure node agent: client and root directory are needed")
	}
	if cfg.SweepInterval == 0 {
		cfg.SweepInterval = time.Minute
	}
	a := &Agent{cfg: cfg, view: &nodeobj.View{}, unknown: map[string]string{}}
	if err := errors.Join(a.makeNode(), a.makeEvents()); err != nil {
		return nil, fmt.Errorf("configure node agent: %w", err)
	}
	if err := a.makePlugin(); err != nil {
		return nil, fmt.Errorf("configure node agent: %w", err)
	}
	if err := errors.Join(a.makeLimits(), a.makeHealth(), a.makePods()); err != nil {
		return nil, fmt.Errorf("configure node agent: %w", err)
	}
	a.view.OnChange(a.nodeChanged)
	if a.watches = cfg.Watches; a.watches == nil {
		a.watches = newWatches(cfg.Client, a.node(), cfg.SyncFrequency)
	}
	a.watches.agents[a.node()] = a
	return a, nil
}

func (a *Agent) node() string { return a.cfg.Template.Name }

func (a *Agent) makeNode() error {
	var keeperErr, leaseErr, inUseErr, infoErr error
	c := a.cfg.Client
	a.keeper, keeperErr = nodeobj.New(nodeobj.Config{
		Template: a.cfg.Template, Nodes: c.Nodes(), View: a.view, Frequency: a.cfg.StatusFrequency,
	})
	a.renewer, leaseErr = lease.New(lease.Config{
		Leases: c.Leases(corev1.NamespaceNodeLease), Node: a.node(), NodeUID: a.nodeUID, Duration: a.cfg.LeaseDuration,
	})
	a.inUse, inUseErr = inuse.New(inuse.Config{Write: a.writeInUse})
	a.info, infoErr = nodeinfo.New(nodeinfo.Config{Client: c, NodeName: a.node(), Collision: a.cfg.Collision, Linger: a.cfg.Linger, Waits: a.schedulerWaits})
	return errors.Join(keeperErr, leaseErr, inUseErr, infoErr)
}

func (a *Agent) writeInUse(ctx context.Context, names []string) error {
	return a.keeper.WriteInUse(ctx, names)
}

func (a *Agent) nodeUID() types.UID {
	if n := a.view.Node(); n != nil {
		return n.UID
	}
	return ""
}

func (a *Agent) makeEvents() (err error) {
	a.events, err = events.NewRecorder(events.Config{
		Client: a.cfg.Client, Component: "csi-node-agent", Host: a.node(), Registerer: a.cfg.Registerer,
	})
	return err
}

func (a *Agent) makePlugin() error {
	inUse, attached, err := a.handshake()
	if err != nil {
		return err
	}
	var health func(types.UID)
	if a.cfg.VolumeHealth {
		health = func(uid types.UID) { a.pods.Wake(uid) }
	}
	a.plugin, err = kubeletplugin.New(kubeletplugin.Config{
		StatusKnown: true,
		Node:        a.node(), RootDir: string(a.cfg.Root), Inotify: a.cfg.Inotify,
		Objects: kubeapi.Objects{API: a.cfg.Client, CSIDriver: a.csiDriver, Self: a.view.Node}, Allowed: a.cfg.Allowed,
		Secrets: kubeapi.Secrets{API: a.cfg.Client}, Tokens: kubeapi.NewTokens(a.cfg.Client), Claims: kubeapi.Claims{API: a.cfg.Client},
		InUse: inUse, Attachments: attached, SelfAttach: a.self != nil, Exhausted: a.exhausted,
		NodeInfo: nodeInfo{a.info}, Events: kubeapi.Events{Recorder: a.events}, StatsInterval: a.cfg.StatsPeriod, VolumeHealth: health,
		Changed: func(uid types.UID) { a.pods.Wake(uid) },
		Dial:    a.dial, Mounts: a.cfg.Mounts, FileLabel: a.cfg.FileLabel, Timeout: a.cfg.CSITimeout, SyncInterval: a.cfg.SyncFrequency,
		Registerer: a.cfg.Registerer, Fault: a.cfg.Fault,
	})
	return err
}

func (a *Agent) makePods() (err error) {
	count, err := unsupportedCounter(a.cfg.Registerer)
	if err != nil {
		return err
	}
	if a.orphans, err = newOrphans(a.cfg.Registerer); err != nil {
		return err
	}
	var health func(types.UID) map[volume.Key][]corev1.VolumeHealthCondition
	if a.cfg.VolumeHealth {
		health = a.podHealth
	}
	a.pods, err = pods.New(pods.Config{
		Pods: a.cfg.Client.Pods, Resolve: a.resolve, Volumes: a.plugin.Volumes(),
		Clean: a.cleanPod, LimitExceeded: a.limitExceeded, Health: health,
		Events: a.events, HostIP: a.cfg.Template.IP, Workers: a.cfg.Workers, Metrics: a.cfg.Queues, Unsupported: count,
	})
	return err
}

// schedulerWaits reports whether the scheduler keeps pods off nodes without a driver.
func (a *Agent) schedulerWaits(name string) bool {
	d := a.csiDriver(name)
	return d != nil && d.Spec.PreventPodSchedulingIfMissing != nil && *d.Spec.PreventPodSchedulingIfMissing
}

func (a *Agent) csiDriver(name string) *storagev1.CSIDriver {
	d, _ := a.watches.csiDrivers.Get("", name)
	return d
}
