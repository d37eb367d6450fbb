package agent

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/httpserve"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/kubemetrics"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/procmetrics"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/agent"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/nodeinfo"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"

	"github.com/prometheus/client_golang/prometheus"
)

// Run is one node until ctx is done. Volumes stay mounted then, as they do when the process is
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
	a, err := newAgent(&o, o.registerer(reg))
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	if address := o.HTTP.Address(); address != "" {
		server, err := httpserve.Listen(httpserve.Config{
			Address: address, MetricsPath: o.HTTP.MetricsPath, Gatherer: reg, Pprof: o.HTTP.Pprof,
			Ready:  map[string]func(context.Context) error{"node": func(context.Context) error { return a.Problem() }},
			State:  a.State,
			Logger: klog.FromContext(ctx),
		})
		if err != nil {
			return fmt.Errorf("serve metrics and health: %w", err)
		}
		g.Go(func() error { return server.Run(ctx) })
	}
	g.Go(func() error { return a.Run(ctx) })
	return g.Wait()
}

// registerer is where the metrics go: the agent's own registry, or the one of Options with a label that distinguishes several
// agents apart.
func (o *Options) registerer(own prometheus.Registerer) prometheus.Registerer {
	if o.Registerer == nil {
		return own
	}
	return prometheus.WrapRegistererWith(prometheus.Labels{"node": o.NodeName}, o.Registerer)
}

func newAgent(o *Options, reg prometheus.Registerer) (*agent.Agent, error) {
	cfg, err := kube.Config(o.Kube, "csi-node-agent")
	if err != nil {
		return nil, err
	}
	cfg.Wrap(kubemetrics.NewRest(reg).Wrap)
	client, err := kube.New(cfg)
	if err != nil {
		return nil, err
	}
	template, err := o.template()
	if err != nil {
		return nil, err
	}
	return agent.New(agent.Config{
		Client: client, Root: layout.Root(o.RootDir), Template: template,
		Allowed: o.AllowedDrivers, RegistryDirs: o.RegistryDirs,
		Collision: nodeinfo.Collision(o.TopologyCollision), Linger: o.CSINodeLinger,
		CSITimeout: o.CSITimeout, StatusFrequency: o.StatusFrequency,
		LeaseDuration: o.leaseDuration(), SyncFrequency: o.SyncFrequency, Workers: o.Workers,
		Registerer: reg, Queues: kubemetrics.NewQueues(reg),
	})
}
