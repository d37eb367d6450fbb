// Package component holds what a component is made of that works on API objects: the connection to the API server, the HTTP listener with metrics, readiness
// and state, the event recorder, leader election, and a controller for each time that the instance leads.
//
//	err := component.Run(ctx, component.Config{Name: "snapshot-controller", Options: o.Options, Names: names, New: newWork, ...})
//
// When ctx ends, the controller finishes the operations in progress; then the last events are written. Metrics are served until the end.
//
// Use package sidecar for a component that stands next to a CSI driver. Do not use either for components without an API server.
package component

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/events"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/kubemetrics"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/procmetrics"
	"github.com/longshore-csi/longshore/csikit/version"
)

// ErrReplace is what Controller.Run returns, before its context ends, to be replaced by a new controller: what it was made for has changed.
var ErrReplace = errors.New("the controller is to be replaced")

// Controller works on API objects.
type Controller interface {
	// Run works until ctx ends, then finishes the operations in progress. It is called once, or never if this instance does not lead. Its error ends the
	// component, but for ErrReplace.
	Run(ctx context.Context) error
	// Synced returns the error of kube.CheckSynced while Run waits for first lists. It is nil before Run is called.
	Synced() error
	// State returns what /debug/state shows, as JSON; nil: nothing.
	State() any
}

// Preparer is a Controller that can read its objects while its instance waits for the Lease, so that it begins at once when that leads.
type Preparer interface {
	Controller
	// Prepare begins to read. stop is called when Run has returned, or is not to be called.
	Prepare(ctx context.Context) (stop func())
}

// Environment has the connection, recorder and registries of a process, which all its controllers share.
type Environment struct {
	// Kube is the connection to the API server.
	Kube kube.Client
	// Events records events. Those recorded before Controller.Run returns are written.
	Events events.Recorder
	// QueueMetrics measures work queues.
	QueueMetrics workqueue.MetricsProvider
	// Registerer takes metrics of the component's own.
	Registerer prometheus.Registerer
	// Drain is how long operations in progress may go on when the context of a controller has ended: Options.Drain.
	Drain time.Duration
}

// Names are those by which users find the work of a component.
type Names struct {
	// Events is the name under which users see its events, and Lease that of the Lease which its instances compete for.
	Events, Lease string
	// About is the object that gets the events about the component itself. Default: the Lease; without an election there are none.
	About *corev1.ObjectReference
}

// Work is what a component does.
type Work struct {
	// NewController makes a controller. There is one after the other: the next takes over when Run of the last has returned.
	NewController func() Controller
	// Able returns when a controller can work, or ctx ends. until is closed when it no longer can: then the controller is stopped, the Lease is released, so that
	// another instance may have it, and Able is called again. nil: a controller always can.
	Able func(ctx context.Context) (until <-chan struct{})
	// Beside runs beside the controllers, whether this instance leads or not, until ctx ends. now returns the controller at work, or the one that
	// waits. Its error ends the component. nil: nothing runs.
	Beside func(ctx context.Context, now func() Controller) error
}

// Config of a component. All fields without a default are required.
type Config struct {
	// Name of the component, such as snapshot-controller: in the log, in user agents and in messages.
	Name string
	// Options has the values of the shared flags. They must be valid.
	Options Options
	// Warnings are logged first.
	Warnings []string
	// Registry has the metrics that are served. Default: a new one of package procmetrics.
	Registry *prometheus.Registry
	// Names returns the names when they are known, which may need to wait until ctx ends. It is called once; its error ends Run.
	Names func(ctx context.Context) (Names, error)
	// New is called once, after Names. It may wait for what the component needs until ctx ends; its error ends Run.
	New func(ctx context.Context, env Environment) (Work, error)
	// StateKey is the key of Controller.State in the JSON of /debug/state.
	StateKey string
	// Checks are those of /readyz, by name, besides informer-sync, which reports Controller.Synced. nil: there are none.
	Checks map[string]func(context.Context) error
	// ReadyPath is another path of /readyz; empty: none.
	ReadyPath string
	// NoMetrics: the HTTP endpoint does not serve metrics.
	NoMetrics bool

	// Connected, which may be nil, is called with what reaches the API server as Options.Kube says, to make clients of other kinds than
	// those of Client. It is not called if Client is set.
	Connected func(*rest.Config) error
	// Client is the connection to the API server. Default: as Options.Kube says.
	Client kube.Client
	// Host identifies this instance in the Lease and in events. Default: see leader.Config and events.Config.
	Host string
}

// Run works until ctx ends, which is no error. If Options.LeaderElection asks for it, it waits for the Lease. An instance that loses the Lease stops what it
// does, and waits for it again. The logger is taken from ctx.
//
// It returns an error for an address that cannot be listened on, a missing kubeconfig, and the errors of Names, New, Work.Beside and controllers.
func Run(ctx context.Context, cfg Config) error {
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithName(cfg.Name))
	klog.FromContext(ctx).Info("Starting", logging.KeyVersion, version.Get().String())
	for _, warning := range cfg.Warnings {
		klog.FromContext(ctx).Info(warning)
	}
	c := &instance{Config: cfg}
	if c.Registry == nil {
		c.Registry = procmetrics.NewRegistry()
	}
	if err := c.connect(); err != nil {
		return err
	}
	return c.run(ctx)
}

// connect prepares the connection to the API server.
func (c *instance) connect() error {
	if c.Client != nil {
		return nil
	}
	cfg, err := kube.Config(c.Options.Kube, c.Name+"/"+version.Get().Version)
	if err != nil {
		return err
	}
	cfg.Wrap(kubemetrics.NewRest(c.Registry).Wrap)
	if c.Client, err = kube.New(cfg); err != nil || c.Connected == nil {
		return err
	}
	return c.Connected(cfg)
}
