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
	// end is called once the socket is gone, and tells run.
	end context.CancelFunc
	// prior is the session of the socket that was at the path before. It keeps
	// the driver registered until this one has had its first answer, so that a
	// registrar which restarts takes nothing away.
	prior *session
	// replaced is closed when there is another socket at the path: this session
	// keeps what it has registered until its successor has had its chance, and
	// does not touch the socket any more.
	replaced chan struct{}

	mu    sync.Mutex
	state Status
}

// start runs a session for gen. The session of a replaced socket comes as
// prior; it ends when the new one has had its chance.
func (m *Manager) start(ctx context.Context, gen Generation, prior *session, running *sync.WaitGroup) *session {
	alive, end := context.WithCancel(ctx)
	s := &session{m: m, gen: gen, end: end, prior: prior, replaced: make(chan struct{}), state: Status{Path: gen.Path}}
	if prior != nil {
		close(prior.replaced)
		if !prior.status().Registered {
			s.endPrior()
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
	defer s.endPrior()
	retry := newRetry(time.Now())
	for alive.Err() == nil && !s.isReplaced() {
		changed := s.m.claims.change()
		p, err := s.attempt(ctx, alive)
		if !errors.Is(err, errUnreachable) || !retry.young(time.Now()) {
			s.endPrior()
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

func (s *session) isReplaced() bool {
	select {
	case <-s.replaced:
		return true
	default:
		return false
	}
}

// endPrior ends the session of the socket that was replaced.
func (s *session) endPrior() {
	if s.prior != nil {
		s.prior.end()
		s.prior = nil
	}
}

// pause waits for delay, for the end of the socket, or for a name to change hands.
func (s *session) pause(alive context.Context, delay time.Duration, changed <-chan struct{}) {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-alive.Done():
	case <-s.replaced:
	case <-changed:
	}
}

// attempt registers the driver once and tells the registrar how it went.
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
	if err := s.m.claims.check(p); err != nil {
		return err
	}
	if err := s.m.cfg.Handler.Validate(p); err != nil {
		return fmt.Errorf("validate CSI driver %q: %w", p.Name, err)
	}
	if err := s.m.cfg.Handler.Register(alive, p); err != nil {
		s.failed(ctx, alive, p)
		return fmt.Errorf("register CSI driver %q: %w", p.Name, err)
	}
	s.m.claims.hold(p)
	return nil
}

// failed puts things right after a handler did not register p. The handler has
// undone what it did, and with it the registration of a lower version, which
// therefore starts again. If it was interrupted because the socket went, it
// could not undo anything, and is asked to.
func (s *session) failed(ctx, alive context.Context, p Plugin) {
	s.m.claims.forget(p)
	if alive.Err() != nil && ctx.Err() == nil {
		s.m.cfg.Handler.Deregister(ctx, p)
	}
}

// refuse tells the registrar about the problem and returns it.
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
	if ctx.Err() != nil || !s.m.claims.drop(p) {
		return
	}
	klog.FromContext(ctx).Info("CSI driver deregistered", logging.KeyDriver, p.Name)
	s.m.cfg.Handler.Deregister(ctx, p)
}

// stay returns when the driver is no longer this session's: its socket is
// gone, or a higher version has taken over, left, and freed the name.
func (s *session) stay(ctx, alive context.Context, p Plugin) {
	for alive.Err() == nil {
		holds, changed := s.m.claims.holds(p)
		if !holds && !s.isReplaced() && s.m.claims.check(p) == nil {
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
	s.state.Driver = p.Name
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
	klog.FromContext(ctx).V(level).Info("CSI driver is not registered, trying again",
		logging.KeyReason, problem.Error(), logging.KeyDelay, delay)
}

func (s *session) status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}
