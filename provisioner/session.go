package provisioner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/component"
	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/leader"
	"github.com/longshore-csi/longshore/csikit/migration"
	"github.com/longshore-csi/longshore/provisioner/internal/capabilities"
	"github.com/longshore-csi/longshore/provisioner/internal/capacity"
	"github.com/longshore-csi/longshore/provisioner/internal/claim"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/topology"
)

// session provisions as long as the same kinds of objects are to be watched, for a driver in the same segment.
type session struct {
	*provisioner

	// mu guards what follows.
	mu sync.Mutex
	// view is what is known of the cluster, and made what it was made for; nil before Prepare and Run. stop stops it.
	view *view.View
	made target
	stop func()
	// controller is nil unless Run works. end ends it.
	controller *claim.Controller
	end        context.CancelCauseFunc
}

var _ component.Preparer = (*session)(nil)

// target is what a session is made for.
type target struct {
	shape   view.Shape
	segment topology.Segment
}

// target returns what a session would be made for now. p.mu must be held.
func (p *provisioner) target(info *csiclient.Info) target {
	return target{shape: capabilities.ShapeOf(info, p.features()), segment: p.segment}
}

// Prepare implements component.Preparer: it fills the caches.
func (s *session) Prepare(ctx context.Context) (stop func()) {
	s.findAttributes(ctx)
	s.findAttach(ctx, s.env.CSI.Info())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.provisioner.mu.Lock()
	defer s.provisioner.mu.Unlock()
	s.startView(ctx, s.env.CSI.Info())
	return s.stop
}

// startView makes and starts a view, unless there is one that serves. s.mu and that of the provisioner must be held.
func (s *session) startView(ctx context.Context, info *csiclient.Info) {
	now := s.target(info)
	switch {
	case s.view == nil:
	case s.made == now:
		return
	default:
		s.stop()
	}
	s.view, s.made = view.New(s.viewConfig(info)), now
	s.stop = sync.OnceFunc(s.view.Start(ctx))
}

// Run implements sidecar.Controller.
func (s *session) Run(ctx context.Context) error {
	var finding sync.WaitGroup
	finding.Go(func() { s.findAttributes(ctx) })
	finding.Go(func() { s.findAttach(ctx, s.env.CSI.Info()) })
	defer s.startJournal(ctx)()
	finding.Wait()
	if err := cmp.Or(s.passed(ctx), s.findOwner(ctx)); err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	publisher, err := s.begin(ctx, end)
	if err != nil {
		return err
	}
	defer s.finish()
	group, working := errgroup.WithContext(ctx)
	group.Go(func() error { return s.controller.Run(working) })
	if publisher != nil {
		s.counts.Watch(publisher)
		defer s.counts.Watch(nil)
		group.Go(func() error { return publisher.Run(working) })
	}
	err = group.Wait()
	switch {
	case errors.Is(context.Cause(ctx), claim.ErrSucceeded):
		klog.FromContext(ctx).Info("Starting again, the driver has other capabilities or another topology now")
		return component.ErrReplace
	case ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, leader.ErrLost)):
		return nil // it says nothing but that ctx has ended
	}
	return err
}

// passed returns leader.ErrUnused if the leadership has ended before the records were taken over: the leader before is the next one's predecessor.
func (s *session) passed(ctx context.Context) error {
	if _, elected := leader.TermOf(ctx); elected && ctx.Err() != nil && !s.journal.Durable() {
		return leader.ErrUnused
	}
	return nil
}

// begin makes the controllers. publisher is nil when no capacity is published.
func (s *session) begin(ctx context.Context, end context.CancelCauseFunc) (publisher *capacity.Controller, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.provisioner.mu.Lock()
	defer s.provisioner.mu.Unlock()
	info := s.env.CSI.Info() // one reading decides about view and controller
	s.startView(ctx, info)
	config := claim.Config{
		Info:        s.env.CSI.Info,
		Driver:      s.env.CSI.Controller(),
		Kube:        s.kube,
		Secrets:     s.env.Secrets,
		View:        s.view,
		Plugin:      migration.Of(info.Name),
		Competition: s.competition(),
		Events:      s.env.Events,
		Journal:     s.journal,
		Queues:      s.env.QueueMetrics,
		Ages:        s.env.Registerer,
		Metrics:     s.metrics,
		Settings:    s.settings(info.Name),
	}
	if _, ok := leader.TermOf(ctx); ok {
		config.Resign = func() { leader.Resign(ctx) }
	}
	if s.options.Capacity.Enabled {
		publisher, err = capacity.New(capacity.Config{
			Info: s.env.CSI.Info, Client: s.env.CSI.Controller(), Kube: s.kube, Source: s.view,
			Queues: s.env.QueueMetrics, Ages: s.env.Registerer, Settings: s.capacitySettings(),
		})
		if err != nil {
			s.stop()
			return nil, err
		}
		config.Capacity = publisher
	}
	s.controller, err = claim.New(config)
	if err != nil {
		s.stop()
		return nil, err
	}
	s.end = end
	return publisher, nil
}

// finish forgets the controllers, and stops the view.
func (s *session) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.controller, s.end = nil, nil
	s.stop()
}

// Synced implements sidecar.Controller.
func (s *session) Synced() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.controller == nil {
		return nil
	}
	return s.view.Synced()
}

// DriverChanged implements sidecar.Controller.
func (s *session) DriverChanged(context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.provisioner.mu.Lock()
	defer s.provisioner.mu.Unlock()
	switch {
	case s.controller == nil: // Run looks
	case s.target(s.env.CSI.Info()) != s.made:
		s.end(claim.ErrSucceeded) // by one for the driver as it is now
	default:
		s.controller.Requeue()
	}
}

// state is what /debug/state shows of a session.
type state struct {
	// Node and Segment are those that an instance on each node provisions for.
	Node    string `json:"node,omitempty"`
	Segment string `json:"segment,omitempty"`
	claim.State
}

// State implements sidecar.Controller.
func (s *session) State() any {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.controller == nil {
		return nil
	}
	now := state{State: s.controller.State()}
	if s.options.Node.Enabled {
		now.Node, now.Segment = s.options.Node.Name, s.made.segment.String()
	}
	return now
}

// startJournal has volumes in progress recorded in a Lease beside the one of the election, and opens those of the process before.
func (s *session) startJournal(ctx context.Context) (stop func()) {
	cfg := journal.Config{
		Leases:   s.kube.Leases(leader.Namespace(s.options.LeaderElection.Namespace)),
		Name:     leader.SanitizeName(s.env.Driver) + "-journal",
		Identity: s.identity,
		Labels:   s.options.LeaderElection.Labels,
		Settle:   claim.SettlePeriod(s.options.CSI.Timeout),
		Timeout:  s.options.KubeTimeout,
		Adopted:  s.adopted,
		Report:   s.reportJournal,
	}
	if term, ok := leader.TermOf(ctx); ok {
		cfg.Term = journal.Term(term)
	}
	if s.options.Node.Enabled {
		cfg.Name, cfg.Owner = cfg.Name+"-"+s.options.Node.Name, s.nodeOwner(ctx)
	}
	return s.journal.Start(ctx, cfg)
}

// adopted goes on with volumes whose records could not be read when the session began.
func (s *session) adopted(volumes []journal.Intent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.controller != nil {
		s.controller.Resume(volumes)
	}
}

// reportJournal tells administrators that volumes in progress are not recorded.
func (s *session) reportJournal(why error) {
	s.env.Events.Warning(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: s.env.Driver}}, "JournalNotWritten",
		fmt.Sprintf("Volumes in progress are not recorded, so that one may be left in the storage system if its claim is deleted while csi-provisioner is killed. Allow get, create and update of leases: %v", why))
}
