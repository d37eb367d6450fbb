package registration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
)

// session is the life of one generation: register, stay, deregister.
type session struct {
	m   *Manager
	gen Generation
	// end ends run; it is called once the socket is gone.
	end context.CancelFunc
	// predecessor is the session of the socket that was at the path before. It
	// keeps the driver registered until the first attempt of this one has ended,
	// so that a restart of the registrar removes nothing.
	predecessor *session
	// superseded is closed when there is another socket at the path: this session
	// keeps its registration until the first attempt of its successor has ended,
	// and does not use the socket any more.
	superseded chan struct{}

	mu    sync.Mutex
	state Status
}

// start runs a session for gen. predecessor is the session of the socket that
// gen replaces, nil for none; it ends after the first attempt of the new one.
func (m *Manager) start(ctx context.Context, gen Generation, predecessor *session, running *sync.WaitGroup) *session {
	alive, end := context.WithCancel(ctx)
	s := &session{m: m, gen: gen, end: end, predecessor: predecessor, superseded: make(chan struct{}), state: Status{Path: gen.Path}}
	if predecessor != nil {
		close(predecessor.superseded)
		if !predecessor.status().Registered {
			s.endPredecessor()
		}
	}
	running.Go(func() {
		defer end()
		s.run(klog.NewContext(ctx, klog.FromContext(ctx).WithValues(logging.KeyPath, gen.Path)), alive)
	})
	return s
}

// run returns when the socket is gone (alive ends) or the process stops (ctx
// ends as well).
func (s *session) run(ctx, alive context.Context) {
	defer s.endPredecessor()
	retry := newRetry(time.Now())
	for alive.Err() == nil && !s.isSuperseded() {
		changed := s.m.owners.change()
		p, err := s.attempt(ctx, alive)
		if !errors.Is(err, errUnreachable) || !retry.inStartupGrace(time.Now()) {
			s.endPredecessor()
		}
		if err == nil {
			s.stay(ctx, alive, p)
			retry = newRetry(time.Now())
			continue
		}
		delay := retry.next(time.Now(), err)
		s.report(ctx, err, delay)
		if !errors.Is(err, errTaken) {
			changed = nil
		}
		s.pause(alive, delay, changed)
	}
}

func (s *session) isSuperseded() bool {
	select {
	case <-s.superseded:
		return true
	default:
		return false
	}
}

// endPredecessor ends the session of the socket that was replaced.
func (s *session) endPredecessor() {
	if s.predecessor != nil {
		s.predecessor.end()
		s.predecessor = nil
	}
}

// pause waits for delay, for the end of the socket, or for a name to change its owner.
func (s *session) pause(alive context.Context, delay time.Duration, changed <-chan struct{}) {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-alive.Done():
	case <-s.superseded:
	case <-changed:
	}
}

// attempt registers the driver once and reports the result to the registrar.
func (s *session) attempt(ctx, alive context.Context) (Plugin, error) {
	reg, err := connect(alive, s.m.cfg, s.gen)
	if err != nil {
		return Plugin{}, err
	}
	defer reg.close()
	p, err := reg.plugin(alive)
	if err != nil {
		return Plugin{}, s.refuse(alive, reg, err)
	}
	s.named(p)
	unlock, err := s.m.names.Lock(alive, p.Name)
	if err != nil {
		return Plugin{}, fmt.Errorf("wait for the turn of CSI driver %q: %w", p.Name, err)
	}
	defer unlock()
	if err := s.register(ctx, alive, p); err != nil {
		return Plugin{}, s.refuse(alive, reg, err)
	}
	if err := reg.notify(alive, nil); err != nil {
		s.deregister(ctx, p)
		return Plugin{}, err
	}
	s.registered(ctx, p)
	return p, nil
}

// register asks the handler. The caller holds the lock of the name.
func (s *session) register(ctx, alive context.Context, p Plugin) error {
	if err := s.m.owners.check(p); err != nil {
		return err
	}
	if err := s.m.cfg.Handler.Register(alive, p); err != nil {
		s.failed(ctx, alive, p)
		return fmt.Errorf("register CSI driver %q: %w", p.Name, err)
	}
	s.m.owners.hold(p)
	return nil
}

// failed cleans up after a handler did not register p. The handler has
// undone what it did, and with it the registration of a lower version, which
// therefore starts again. If it was interrupted because the socket went, it
// could not undo anything, and is asked to.
func (s *session) failed(ctx, alive context.Context, p Plugin) {
	s.m.owners.forget(p)
	if alive.Err() != nil && ctx.Err() == nil {
		s.m.cfg.Handler.Deregister(ctx, p)
	}
}

// refuse reports the problem to the registrar and returns it.
func (s *session) refuse(alive context.Context, reg *registrar, problem error) error {
	if alive.Err() != nil {
		return problem
	}
	if err := reg.notify(alive, problem); err != nil {
		klog.FromContext(alive).V(4).Info("Registrar did not take the refusal", logging.KeyPath, s.gen.Path, logging.KeyReason, err.Error())
	}
	return problem
}

// deregister undoes what this generation registered, and nothing else. The
// caller holds the lock of the name. A process that stops leaves all as it is.
func (s *session) deregister(ctx context.Context, p Plugin) {
	if ctx.Err() != nil || !s.m.owners.drop(p) {
		return
	}
	klog.FromContext(ctx).Info("CSI driver deregistered", logging.KeyDriver, p.Name)
	s.m.cfg.Handler.Deregister(ctx, p)
}

// stay returns when the driver is no longer this session's: its socket is
// gone, or a higher version has taken over, left, and freed the name.
func (s *session) stay(ctx, alive context.Context, p Plugin) {
	for alive.Err() == nil {
		holds, changed := s.m.owners.holds(p)
		if !holds && !s.isSuperseded() && s.m.owners.check(p) == nil {
			return
		}
		select {
		case <-alive.Done():
		case <-changed:
		}
	}
	unlock, err := s.m.names.Lock(ctx, p.Name)
	if err != nil {
		return // the process stops
	}
	defer unlock()
	s.deregister(ctx, p)
}

func (s *session) named(p Plugin) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Driver, s.state.Endpoint = p.Name, p.Endpoint
}

func (s *session) registered(ctx context.Context, p Plugin) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Registered, s.state.Problem = true, ""
	klog.FromContext(ctx).Info("CSI driver registered", logging.KeyDriver, p.Name, logging.KeyEndpoint, p.Endpoint, logging.KeyVersion, p.Version)
}

// report logs a problem once, not at each retry.
func (s *session) report(ctx context.Context, problem error, delay time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	level := 0
	if s.state.Problem == problem.Error() {
		level = 4
	}
	s.state.Registered, s.state.Problem = false, problem.Error()
	klog.FromContext(ctx).V(level).Info("CSI driver is not registered, retrying",
		logging.KeyReason, problem.Error(), logging.KeyDelay, delay)
}

func (s *session) status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}
