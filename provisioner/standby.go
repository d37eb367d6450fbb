package provisioner

import (
	"context"
	"sync"

	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/topology"
)

// standby is the view of an instance that waits for the lease. The first session uses it, if the driver is still the one that it was made for.
type standby struct {
	view    *view.View
	shape   view.Shape
	segment topology.Segment
	stop    func()
}

// prepare fills the caches of an instance that waits for the lease, so that it can begin at once when it leads. The view is kept up to date until the
// returned function is called.
func (p *instance) prepare(ctx context.Context) (stop func()) {
	info := p.driver.Info()
	p.findAttributes(ctx)
	p.findAttach(ctx, info)
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.viewConfig(info)
	s := &standby{view: view.New(known), shape: known.Shape, segment: p.segment}
	s.stop = sync.OnceFunc(s.view.Start(ctx))
	p.standby = s
	return s.stop
}

// viewFor returns the view for a controller, and what starts it: that of the standby, once, if it shows what the controller reads. p.mu must be held.
func (p *instance) viewFor(known view.Config) (v *view.View, start func(context.Context) (stop func())) {
	s := p.standby
	p.standby = nil
	if s != nil && s.shape == known.Shape && s.segment == p.segment {
		return s.view, func(context.Context) func() { return s.stop }
	}
	v = view.New(known)
	return v, func(ctx context.Context) func() {
		if s != nil {
			s.stop()
		}
		return v.Start(ctx)
	}
}
