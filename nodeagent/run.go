package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/httpserve"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/kubemetrics"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/procmetrics"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
	"github.com/longshore-csi/longshore/nodeagent/internal/agent"
	"github.com/longshore-csi/longshore/nodeagent/internal/nodeinfo"
	"github.com/longshore-csi/longshore/nodeagent/internal/selfattach"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// linger is how long a driver that has deregistered keeps its entry in the CSINode, with its volume limit.
	linger = 5 * time.Minute
	// statusFrequency is how often the status of the Node is computed, as by a kubelet; it is written if it has changed.
	statusFrequency = 10 * time.Second
	// leaseDuration is for how long the node counts as alive after a renewal of its Lease, as with a kubelet.
	leaseDuration = 40 * time.Second
	// workers is the maximum number of pods processed concurrently; each volume has a worker of its own.
	workers = 16
)

// Run is a node, or several, until ctx is done. Volumes stay mounted then, as they do when the process is
// killed: the next start finds them. It returns an error if an option is wrong, if another agent
// works below the same root directory, or if that directory or the mount table cannot be read.
func Run(ctx context.Context, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	for _, warning := range o.Warnings() {
		klog.FromContext(ctx).Info("Command line", logging.KeyReason, warning)
	}
	reg := procmetrics.NewRegistry()
	nodes, err := newNodes(&o, reg)
	if err != nil {
		return err
	}
	g, running := errgroup.WithContext(ctx)
	if address := o.HTTP.Address(); address != "" {
		server, err := httpserve.Listen(httpserve.Config{
			Address: address, MetricsPath: o.HTTP.MetricsPath, Gatherer: reg, Pprof: o.HTTP.Pprof,
			Ready:  map[string]func(context.Context) error{"node": func(context.Context) error { return nodes.problem() }},
			State:  nodes.state,
			Logger: klog.FromContext(ctx),
		})
		if err != nil {
			return errors.Join(fmt.Errorf("serve metrics and health: %w", err), nodes.close())
		}
		g.Go(func() error { return server.Run(running) })
	}
	g.Go(func() error { return nodes.run(running) })
	return errors.Join(g.Wait(), nodes.close())
}

// registerer is where the metrics go: the agent's own registry, or the one of Options with a label that distinguishes several
// agents apart.
func (o *Options) registerer(own prometheus.Registerer) prometheus.Registerer {
	if o.Registerer == nil {
		return own
	}
	return prometheus.WrapRegistererWith(prometheus.Labels{"node": o.NodeName}, o.Registerer)
}

// newAgent makes one node. The shared parts are nil where the process is one node.
func newAgent(o *Options, reg prometheus.Registerer, shared *shared) (*agent.Agent, error) {
	cfg, err := kube.Config(o.Kube, "csi-node-agent")
	if err != nil {
		return nil, err
	}
	cfg.Wrap(kubemetrics.NewRest(reg).Wrap)
	parts, connection := agent.Config{}, kube.NewConnection()
	if shared != nil {
		cfg.Impersonate = rest.ImpersonationConfig{UserName: "system:node:" + o.NodeName, Groups: []string{"system:nodes"}}
		parts.Inotify, parts.Watches, connection = shared.inotify, shared.watches, shared.connection
	}
	if parts.Client, err = connection.Client(cfg); err != nil {
		return nil, err
	}
	if parts.Drivers, err = o.drivers(); err != nil {
		return nil, err
	}
	if parts.Template, err = o.template(); err != nil {
		return nil, err
	}
	parts.Root, parts.Allowed = layout.Root(o.RootDir), o.AllowedDrivers
	parts.SelfAttach = selfattach.Naming(o.SelfAttach)
	parts.Collision, parts.Linger = nodeinfo.Collision(o.TopologyCollision), linger
	parts.StatusFrequency, parts.LeaseDuration, parts.SyncFrequency, parts.Workers = statusFrequency, leaseDuration, o.SyncFrequency, workers
	parts.VolumeHealth = o.Features.Enabled(GateVolumeHealth)
	parts.Registerer, parts.Queues = reg, kubemetrics.NewQueues(reg)
	return agent.New(parts)
}
