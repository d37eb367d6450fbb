package component

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/events"
	"github.com/longshore-csi/longshore/csikit/httpserve"
	"github.com/longshore-csi/longshore/csikit/kubemetrics"
	"github.com/longshore-csi/longshore/csikit/leader"
	"github.com/longshore-csi/longshore/csikit/version"
)

// instance is one running component.
type instance struct {
	Config

	health  leader.Health
	leading atomic.Bool
	// current is the controller at work, or the one that waits until this instance leads; nil before there is one.
	current atomic.Pointer[Controller]
}

// now returns the controller.
func (c *instance) now() Controller { return *c.current.Load() }

// renew replaces the controller, which runs only once.
func (c *instance) renew(work Work) {
	next := work.NewController()
	c.current.Store(&next)
}

// run opens the listener, if one is asked for, and works until ctx ends. The listener outlasts the work, so that metrics of the last
// operations are not lost.
func (c *instance) run(ctx context.Context) error {
	if c.Options.HTTP.Address() == "" {
		return c.work(ctx)
	}
	server, err := c.listen(ctx)
	if err != nil {
		return err
	}
	group, working := errgroup.WithContext(ctx)
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error { return server.Run(background) })
	group.Go(func() error {
		defer stop()
		return c.work(working)
	})
	return group.Wait()
}

func (c *instance) listen(ctx context.Context) (*httpserve.Server, error) {
	o := c.Options.HTTP
	var metrics prometheus.Gatherer = c.Registry
	if c.NoMetrics {
		metrics = nil
	}
	checks := map[string]func(context.Context) error{"informer-sync": c.synced}
	maps.Copy(checks, c.Checks)
	return httpserve.Listen(httpserve.Config{
		Address:     o.Address(),
		MetricsPath: o.MetricsPath,
		Gatherer:    metrics,
		Ready:       checks,
		ReadyPath:   c.ReadyPath,
		Leader:      c.health.Check,
		Pprof:       o.Pprof,
		State:       c.state,
		Logger:      klog.FromContext(ctx),
	})
}

// synced returns an error while the controller waits for a first list, with a hint.
func (c *instance) synced(context.Context) error {
	if c.current.Load() == nil {
		return nil
	}
	if err := c.now().Synced(); err != nil {
		return fmt.Errorf("%w from the API server; does the role of %s allow list and watch?", err, c.Name)
	}
	return nil
}

// unsyncedInterval is how often the component looks whether its first lists are complete. Those of large clusters take less.
const unsyncedInterval = 30 * time.Second

// reasonUnsynced is the reason of an event about a component that lacks a right, such as to list a kind: objects that wait for it have no events.
const reasonUnsynced = "CachesNotSynced"

// reportUnsynced records an event as long as first lists are not complete.
func (c *instance) reportUnsynced(ctx context.Context, about *corev1.ObjectReference, recorder events.Recorder) {
	ticker := time.NewTicker(unsyncedInterval)
	defer ticker.Stop()
	for waited := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		err := c.synced(ctx)
		if waited && err != nil {
			recorder.Warning(about, reasonUnsynced, c.Name+" does nothing: "+err.Error())
		}
		waited = err != nil
	}
}

// about returns the object that gets the events about the component, nil if there is none.
func (c *instance) about(names Names) *corev1.ObjectReference {
	le := c.Options.LeaderElection
	if names.About != nil || !le.Enabled {
		return names.About
	}
	return &corev1.ObjectReference{APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease", Namespace: le.Namespace, Name: names.Lease}
}

// state is what /debug/state shows.
func (c *instance) state() any {
	s := state{Version: version.Get().String(), Leading: c.leading.Load(), key: c.StateKey}
	if identity, since := c.health.Leader(); identity != "" {
		s.Leader = &holder{identity, since}
	}
	if c.current.Load() != nil {
		s.controller = c.now().State()
	}
	return s
}

// holder is who has the Lease, and since when.
type holder struct {
	Identity string    `json:"identity"`
	Since    time.Time `json:"since"`
}

type state struct {
	Version    string  `json:"version"`
	Leading    bool    `json:"leading"`
	Leader     *holder `json:"leader,omitempty"`
	key        string
	controller any
}

// MarshalJSON implements json.Marshaler: the state of the controller, if there is any, comes last, under the key of the component.
func (s state) MarshalJSON() ([]byte, error) {
	type common state
	text, err := json.Marshal(common(s))
	if err != nil || s.controller == nil {
		return text, err
	}
	last, err := json.Marshal(map[string]any{s.key: s.controller})
	return append(append(bytes.TrimSuffix(text, []byte("}")), ','), bytes.TrimPrefix(last, []byte("{"))...), err
}

// work waits for what the component needs, then works until ctx ends.
func (c *instance) work(ctx context.Context) error {
	names, err := c.Names(ctx)
	if err != nil {
		return ignoreStopped(ctx, err)
	}
	recorder, err := events.NewRecorder(events.Config{Client: c.Client, Component: names.Events, Host: c.Host, Registerer: c.Registry})
	if err != nil {
		return err
	}
	work, err := c.New(ctx, Environment{
		Kube: c.Client, Events: recorder, QueueMetrics: kubemetrics.NewQueues(c.Registry), Registerer: c.Registry, Drain: c.Options.Drain(),
	})
	if err != nil {
		return ignoreStopped(ctx, err)
	}
	c.renew(work)
	recording, stop := context.WithCancel(context.WithoutCancel(ctx))
	recorded := make(chan error, 1)
	go func() { recorded <- recorder.Run(recording) }()
	group, working := errgroup.WithContext(ctx)
	if work.Beside != nil {
		group.Go(func() error { return ignoreStopped(working, work.Beside(working, c.now)) })
	}
	if about := c.about(names); about != nil {
		group.Go(func() error { c.reportUnsynced(working, about, recorder); return nil })
	}
	lead := c.leader(names.Lease, work, recorder)
	group.Go(func() error { return whileAble(working, work.Able, lead) })
	err = group.Wait()
	stop() // the events of the last operations are written first
	return errors.Join(err, <-recorded)
}

// ignoreStopped drops an error that only says that ctx has ended.
func ignoreStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // an end that was asked for is none
	}
	return err
}

// whileAble runs lead as long as a controller can work, again and again until ctx ends.
func whileAble(ctx context.Context, able func(context.Context) <-chan struct{}, lead func(context.Context) error) error {
	if able == nil {
		return lead(ctx)
	}
	for {
		until := able(ctx)
		working, stop := context.WithCancel(ctx)
		go func() {
			defer stop()
			select {
			case <-until:
			case <-working.Done():
			}
		}()
		err := lead(working)
		ended := working.Err() != nil
		stop()
		if ended && errors.Is(err, context.Canceled) {
			err = nil // it says nothing but that
		}
		if !ended || ctx.Err() != nil || err != nil && !errors.Is(err, leader.ErrLost) {
			return err
		}
	}
}

// leader returns what runs controllers, as the elected leader if an election is asked for. After a lost Lease, the next controller waits for the next election.
func (c *instance) leader(lease string, work Work, recorder events.Recorder) (lead func(context.Context) error) {
	control := func(ctx context.Context) error { return c.control(ctx, work) }
	le := c.Options.LeaderElection
	if !le.Enabled {
		return control
	}
	election := leader.Config{
		Client:        c.Client,
		Namespace:     le.Namespace,
		Name:          lease,
		Identity:      c.Host,
		Labels:        le.Labels,
		LeaseDuration: le.LeaseDuration,
		RenewDeadline: le.RenewDeadline,
		RetryPeriod:   le.RetryPeriod,
		Metrics:       kubemetrics.NewLeader(c.Registry),
		Health:        &c.health,
		Recorder:      recorder,
	}
	return func(ctx context.Context) error { return leader.Serve(ctx, election, c.prepare, control) }
}

// prepare lets a controller that waits for the Lease read its objects.
func (c *instance) prepare(ctx context.Context) (stop func()) {
	if waiting, ok := c.now().(Preparer); ok {
		return waiting.Prepare(ctx)
	}
	return func() {}
}

// control runs a controller, and those that replace it, until ctx ends. The next one is made then.
func (c *instance) control(ctx context.Context, work Work) error {
	c.leading.Store(true)
	defer c.leading.Store(false)
	for {
		err := c.now().Run(ctx)
		c.renew(work)
		switch {
		case !errors.Is(err, ErrReplace):
			return err
		case ctx.Err() != nil:
			return nil
		}
	}
}
