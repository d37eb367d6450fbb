package provisioner

import (
	"context"
	"errors"
	"os"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/httpserve"
	"github.com/longshore-csi/longshore/csikit/version"
	"github.com/longshore-csi/longshore/provisioner/internal/controller"
)

// listen binds the HTTP endpoint; nil without an error when there is to be none.
func (p *instance) listen(logger klog.Logger) (*httpserve.Server, error) {
	address := p.options.HTTP.Address()
	if address == "" {
		return nil, nil
	}
	config := httpserve.Config{
		Address:     address,
		MetricsPath: p.options.HTTP.MetricsPath,
		Gatherer:    p.registry,
		Ready:       map[string]func(context.Context) error{"driver": p.driver.Ready, "caches": p.cachesReady},
		Pprof:       p.options.HTTP.Pprof,
		State:       p.state,
		Logger:      logger,
	}
	if p.options.LeaderElection.Enabled {
		config.Leader = p.health.Check
	}
	return httpserve.Listen(config)
}

// cachesReady reports whether the controller, if this instance leads, knows all objects.
func (p *instance) cachesReady(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.currentView != nil && !p.currentView.Synced() {
		return errors.New("the first lists of the API server are not complete")
	}
	return nil
}

// The modes of an instance.
const (
	modeCluster = "cluster"
	modeNode    = "node"
)

// instanceState is what /debug/state shows.
type instanceState struct {
	Version    string            `json:"version"`
	Process    int               `json:"process"`
	Mode       string            `json:"mode"`
	Node       string            `json:"node,omitempty"`
	Topology   string            `json:"topology,omitempty"`
	Controller *controller.State `json:"controller"`
}

// state returns what the instance is at; no controller while it does not lead.
func (p *instance) state() any {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := instanceState{Version: version.Get().String(), Process: os.Getpid(), Mode: modeCluster}
	if p.options.Node.Enabled {
		// The segment that the controller works for, which a driver that has just returned may have left.
		s.Mode, s.Node, s.Topology = modeNode, p.options.Node.Name, p.currentSegment.String()
	}
	if p.current != nil {
		state := p.current.State()
		s.Controller = &state
	}
	return s
}
