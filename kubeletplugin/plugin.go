// Package kubeletplugin is the kubelet's CSI volume plugin as a library: it registers the CSI drivers of a node, and stages, publishes, expands, unpublishes
// and unstages volumes for pods, in the kubelet's directory layout, with recovery from a crash at any moment.
//
// A Plugin needs neither a kubelet nor an API server: the caller gives it pods and what it has to know of their volumes. It does not watch anything, does not
// write a Node or the status of a pod, and runs no containers. Module nodeagent is a program around it, a node of a real API server; package kubeapi has what a
// Plugin asks of an API server. The parts that callers see are packages of their own: volume (the manager), resolve (from a pod to its volumes) and layout (names
// and paths).
package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/longshore-csi/longshore/kubeletplugin/fault"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/disk"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/driver"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/recovery"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/registration"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/selinux"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/stats"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
	"github.com/longshore-csi/longshore/kubeletplugin/resolve"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// NodeInfo receives what drivers say about the node (CSI v1.13, "NodeGetInfo"): the agent writes it to the CSINode and the Node. Calls for one driver do not
// overlap. A driver for which Install fails is not used; Install is tried again.
type NodeInfo interface {
	// Install is called before a driver is used, and again when it registers again.
	Install(ctx context.Context, driver string, info *csi.NodeGetInfoResponse) error
	// Update is called with a later answer of a driver that is in use, by Plugin.Refresh. It may overlap with the other calls.
	Update(ctx context.Context, driver string, info *csi.NodeGetInfoResponse) error
	// Uninstall is called when a driver is used no longer; it may never have been installed.
	Uninstall(ctx context.Context, driver string) error
}

// Config says what a Plugin works with. Node, RootDir and Objects are required.
type Config struct {
	// Node is the name of the node.
	Node string
	// RootDir is the kubelet's root directory: an absolute path. Several plugins can run in one process, each with a directory of its own.
	RootDir string
	// Objects are what Kubernetes knows of the volumes of pods: those of resolve.Static, or kubeapi.Objects, for instance.
	Objects resolve.Objects
	// Secrets reads secrets for calls to drivers; nil: a volume that names one cannot be used.
	Secrets volume.Secrets
	// Tokens requests service account tokens; nil: a volume of a driver that wants them cannot be used.
	Tokens volume.Tokens
	// Claims lets volumes be expanded by the protocol of Kubernetes (KEP-1790); nil: the plugin does not expand.
	Claims volume.Claims
	// Attach has volumes attached and detached by the caller, for drivers that want that; nil: they are not, unless InUse and Attachments are set.
	Attach *Attach
	// InUse is this node's side of the handshake with the attach/detach controller; nil: no controller attaches volumes, and none has to be waited for.
	InUse volume.InUse
	// Attachments is the controller's side of the handshake; nil if and only if InUse is.
	Attachments volume.Attachments
	// SelfAttach says that Attachments have volumes attached, and kube-controller-manager has not: then nothing is reported that only it cannot do.
	SelfAttach bool
	// StatusKnown says that the status of the pods that are given to Mount is right: whether containers may have their volumes open. Without it, what is found
	// on disk is in use until Unmount, so that an error of a driver never has a volume unpublished under its workload.
	StatusKnown bool
	// NodeInfo receives what drivers say about the node; nil for nobody.
	NodeInfo NodeInfo
	// Exhausted is called when NodeStageVolume or NodePublishVolume of a driver returns RESOURCE_EXHAUSTED: its volume limit may have changed, and Refresh reads
	// it. It must not block; nil is allowed.
	Exhausted func(driver string)
	// Events are told what pods wait for, and when the health of a volume changes; nil for nobody.
	Events volume.Events
	// Changed is called with the UID of a pod one of whose volumes was published, unpublished, or failed to. It must not block; nil is allowed.
	Changed func(types.UID)
	// Allowed are the drivers that inline volumes may name; the zero value allows all.
	Allowed resolve.AllowedDrivers
	// RegistryDirs are watched for registration sockets besides plugins_registry below RootDir.
	RegistryDirs []string
	// Inotify is an inotify instance to share with other plugins of the process; nil for one of its own.
	Inotify *Inotify
	// Dial connects to a driver's endpoint, for drivers in the same process. Nil, or if it returns neither a connection nor an error: gRPC over its socket.
	Dial func(endpoint string) (grpc.ClientConnInterface, error)
	// Mounts lists mount points; nil means those of the host.
	Mounts volume.MountTable
	// FileLabel returns the SELinux label of the files that a container with the given options may use, empty if there is none; nil means the policy of
	// the host, if SELinux is enabled there.
	FileLabel func(*corev1.SELinuxOptions) string
	// Clock tells the time to volumes that wait for another try; nil means that of the machine.
	Clock clock.Clock
	// Timeout is the deadline of one operation on a volume with all its calls; 2 minutes if zero.
	Timeout time.Duration
	// SyncInterval is how often the claim of a published volume is read to find expansions, and NodePublishVolume is repeated for drivers that want it, and up
	// to half as long again at random; 1 minute if zero.
	SyncInterval time.Duration
	// StatsInterval is how often drivers are asked for the usage and the health of each published volume, and up to as long again at random; 1 minute if
	// zero, never if negative.
	StatsInterval time.Duration
	// VolumeHealth is called with the UID of a pod when a driver reports another health of one of its volumes than before: Usage has it, for the caller to report,
	// as a kubelet does since 1.37. It must not block. Nil: health is events and a metric, as of a kubelet until 1.36.
	VolumeHealth func(types.UID)
	// Registerer receives metrics; nil for none. Plugins that share one wrap it with a label each.
	Registerer prometheus.Registerer
	// Fault stops the work at named points in crash tests.
	Fault fault.Hook
}

// Plugin is the CSI volume plugin of one node.
type Plugin struct {
	cfg      Config
	root     layout.Root
	disk     *disk.Disk
	registry *driver.Registry
	watcher  *registration.Manager
	handler  *handler
	resolver *resolve.Resolver
	volumes  *volume.Manager
	metrics  *metrics
	// attacher is nil unless the caller attaches volumes.
	attacher *attacher
	// collector is nil where drivers are not asked for statistics.
	collector *stats.Collector

	unlock func() error
	bootID string // a file
	// opened is closed by Open, and ended when nothing works on volumes any more.
	opened, ended chan struct{}
	ending        sync.Once
	// finished is closed when result is what Wait returns.
	finished chan struct{}
	result   error
	// orphans are volumes that an earlier process has staged for pods that are not known.
	orphans []string

	mu sync.Mutex
	// unexplained is what no record explains.
	unexplained unexplained
	// left has, by pod, the volumes that it had, until they are unstaged.
	left map[types.UID][]string
	// changed is closed at the next change of any volume.
	changed chan struct{}
}

// New makes a Plugin that does nothing until Start.
func New(cfg Config) (*Plugin, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("configure CSI volume plugin: %w", err)
	}
	cfg.complete()
	p := &Plugin{
		root: layout.Root(cfg.RootDir), bootID: "/proc/sys/kernel/random/boot_id",
		changed: make(chan struct{}), opened: make(chan struct{}), ended: make(chan struct{}), left: map[types.UID][]string{},
	}
	if cfg.Attach != nil {
		p.attacher = newAttacher(&cfg, p.wake)
		cfg.InUse, cfg.Attachments, cfg.SelfAttach = p.attacher, p.attacher, true
	}
	p.cfg = cfg
	p.disk = &disk.Disk{Root: p.root, Fault: cfg.Fault}
	p.registry = driver.NewRegistry(driver.Config{Registerer: cfg.Registerer, Dial: cfg.Dial, Answered: p.cfg.exhausted})
	p.metrics = newMetrics()
	p.handler = &handler{registry: p.registry, info: cfg.NodeInfo, timeout: cfg.Timeout}
	p.resolver = resolve.New(resolve.Config{
		Objects: cfg.Objects, Allowed: cfg.Allowed, NoAttach: cfg.noAttach(), SelfAttach: cfg.SelfAttach, StatusKnown: cfg.StatusKnown, FileLabel: cfg.fileLabel(),
	})
	var err error
	if p.watcher, err = registration.New(registration.Config{Dir: p.root.Registry(), ExtraDirs: cfg.RegistryDirs, Inotify: cfg.Inotify.get(), Handler: p.handler}); err != nil {
		return nil, fmt.Errorf("configure CSI volume plugin: %w", err)
	}
	p.volumes, err = volume.New(volume.Config{
		Node: cfg.Node, Root: p.root, Drivers: drivers{p.registry}, InUse: cfg.InUse, Attachments: cfg.Attachments, Claims: cfg.Claims, Secrets: cfg.Secrets, Tokens: cfg.Tokens,
		Events: cfg.Events, Timeout: cfg.Timeout, SyncInterval: cfg.SyncInterval, Clock: cfg.Clock, Changed: p.podChanged,
		Released: func(string) { p.wake() }, Measure: p.metrics.measure, Fault: cfg.Fault,
	})
	if err == nil {
		err = errors.Join(p.makeCollector(), p.register())
	}
	if err != nil {
		return nil, fmt.Errorf("configure CSI volume plugin: %w", err)
	}
	return p, nil
}

func (p *Plugin) makeCollector() (err error) {
	if p.cfg.StatsInterval < 0 {
		return nil
	}
	p.collector, err = stats.New(stats.Config{
		Published: p.volumes.Published, Drivers: drivers{p.registry}, Events: p.cfg.Events, Health: p.cfg.VolumeHealth, Interval: p.cfg.StatsInterval,
		Clock: p.cfg.Clock,
	})
	return err
}

func (c *Config) fileLabel() func(*corev1.SELinuxOptions) string {
	if c.FileLabel == nil {
		return selinux.Host()
	}
	return c.FileLabel
}

// noAttach reports whether no controller attaches volumes.
func (c *Config) noAttach() bool {
	return c.Attachments == nil || c.Attachments == volume.Attachments(alone{})
}

// check returns an error for fields that cannot be used.
func (c *Config) check() error {
	var errs []error
	if c.Node == "" || c.Objects == nil {
		errs = append(errs, errors.New("the name of the node and objects are required"))
	}
	if !filepath.IsAbs(c.RootDir) {
		errs = append(errs, fmt.Errorf("root directory %q: must be an absolute path", c.RootDir))
	}
	if (c.InUse == nil) != (c.Attachments == nil) {
		errs = append(errs, errors.New("InUse and Attachments belong together: either both or none"))
	}
	if c.Attach != nil && (c.InUse != nil || c.Attach.Publish == nil || c.Attach.Unpublish == nil) {
		errs = append(errs, errAttach)
	}
	return errors.Join(errs...)
}

// complete sets the fields that may be left out.
func (c *Config) complete() {
	if c.Attachments == nil {
		c.InUse, c.Attachments = alone{}, alone{}
	}
	if c.Secrets == nil {
		c.Secrets = alone{}
	}
	if c.Tokens == nil {
		c.Tokens = alone{}
	}
	if c.Claims == nil {
		c.Claims = alone{}
	}
	if c.Events == nil {
		c.Events = alone{}
	}
	if c.Mounts == nil {
		c.Mounts = recovery.HostMounts
	}
	if c.Timeout == 0 {
		c.Timeout = 2 * time.Minute
	}
}

// Volumes is the manager of the volumes of the node.
func (p *Plugin) Volumes() *volume.Manager { return p.volumes }

// Resolve finds the volumes that a pod wants, and the problems with its other CSI volumes.
func (p *Plugin) Resolve(ctx context.Context, pod *corev1.Pod) ([]volume.Publication, []*resolve.Problem) {
	return p.resolver.Pod(ctx, pod)
}

// Usage lists the usage and the health of published volumes, as drivers have reported them.
func (p *Plugin) Usage() []volume.Usage {
	if p.collector == nil {
		return nil
	}
	return p.collector.Latest()
}

// UsageOf is Usage of the volumes of a pod, in no order.
func (p *Plugin) UsageOf(pod types.UID) []volume.Usage {
	if p.collector == nil {
		return nil
	}
	return p.collector.LatestOf(pod)
}

// State is what a debug page shows.
type State struct {
	// Drivers are the names of the registered drivers.
	Drivers []string `json:"drivers"`
	// Registrations are the registration sockets.
	Registrations []Registration `json:"registrations"`
	// Volumes are all volumes of the node.
	Volumes []volume.Dump `json:"volumes"`
}

// Registration is the state of a registration socket.
type Registration struct {
	// Path of the registration socket.
	Path string `json:"path"`
	// Driver is the name it gave, empty before it answered.
	Driver string `json:"driver,omitempty"`
	// Endpoint is the socket of the driver that it gave.
	Endpoint string `json:"endpoint,omitempty"`
	// Registered is true once the registrar was notified of it.
	Registered bool `json:"registered"`
	// Problem is why it is not registered; empty if nothing has failed.
	Problem string `json:"problem,omitempty"`
}

// State returns the present state.
func (p *Plugin) State() State {
	s := State{Drivers: p.registry.Names(), Volumes: p.volumes.Dump(), Registrations: []Registration{}}
	for _, r := range p.watcher.Status() {
		s.Registrations = append(s.Registrations, Registration(r))
	}
	return s
}

// podChanged tells that a volume of a pod has changed.
func (p *Plugin) podChanged(uid types.UID) {
	p.wake()
	if p.cfg.Changed != nil {
		p.cfg.Changed(uid)
	}
}

// wake wakes who waits for volumes.
func (p *Plugin) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
}

// next returns a channel that is closed at the next change. It is taken before the state is looked at, so that no change falls in between.
func (p *Plugin) next() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}
