package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/kubeletplugin"
	"github.com/longshore-csi/longshore/nodeagent/internal/agent"
)

// shared is what the nodes of one process have in common.
type shared struct {
	connection *kube.Connection
	watches    *agent.Watches
	inotify    *kubeletplugin.Inotify
}

// nodes are the nodes of the process, by their names.
type nodes struct {
	names  []string
	agents map[string]*agent.Agent
	// shared is nil for one node.
	shared *shared
}

// newNodes makes all nodes. Each of several has the label node in its metrics.
func newNodes(o *Options, reg prometheus.Registerer) (*nodes, error) {
	n := &nodes{agents: map[string]*agent.Agent{}}
	if o.Nodes <= 1 {
		n.names = []string{o.NodeName}
		return n, n.add(o, o.registerer(reg))
	}
	if err := n.share(o); err != nil {
		return nil, err
	}
	for i := range o.Nodes {
		one := *o
		one.NodeName = fmt.Sprintf("%s-%d", o.NodePrefix, o.FirstNode+i)
		one.RootDir = filepath.Join(o.RootDir, one.NodeName)
		if one.Registerer == nil {
			one.Registerer = reg
		}
		n.names = append(n.names, one.NodeName)
		if err := n.add(&one, one.registerer(nil)); err != nil {
			return nil, errors.Join(err, n.close())
		}
	}
	return n, nil
}

// share makes what all nodes use, with the credentials of the process itself.
func (n *nodes) share(o *Options) error {
	cfg, err := kube.Config(o.Kube, "csi-node-agent")
	if err != nil {
		return err
	}
	n.shared = &shared{connection: kube.NewConnection()}
	client, err := n.shared.connection.Client(cfg)
	if err != nil {
		return err
	}
	n.shared.watches = agent.NewWatches(client, o.SyncFrequency)
	n.shared.inotify, err = kubeletplugin.NewInotify()
	return err
}

func (n *nodes) add(o *Options, reg prometheus.Registerer) error {
	a, err := newAgent(o, reg, n.shared)
	if err != nil {
		return fmt.Errorf("node %q: %w", o.NodeName, err)
	}
	n.agents[o.NodeName] = a
	return nil
}

// run runs all nodes until ctx is done, or one of them fails.
func (n *nodes) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	if n.shared != nil {
		g.Go(func() error { return n.shared.watches.Run(ctx) })
	}
	for name, a := range n.agents {
		g.Go(func() error {
			if err := a.Run(ctx); err != nil {
				return fmt.Errorf("node %q: %w", name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

func (n *nodes) close() error {
	if n.shared == nil || n.shared.inotify == nil {
		return nil
	}
	return n.shared.inotify.Close()
}

// problem says why a node is not ready; nil if all are.
func (n *nodes) problem() error {
	var errs []error
	for _, name := range n.names {
		if err := n.agents[name].Problem(); err != nil {
			errs = append(errs, fmt.Errorf("node %q: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// state is the state of the node, or that of each by its name.
func (n *nodes) state() any {
	if n.shared == nil {
		return n.agents[n.names[0]].State()
	}
	all := map[string]any{}
	for name, a := range n.agents {
		all[name] = a.State()
	}
	return all
}
