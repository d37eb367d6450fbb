package volume

import (
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/fault"
)

// actor owns one volume: it alone issues calls for it.
type actor struct {
	name  string
	state state
	// wake has room for one: it says that the state has changed.
	wake chan struct{}
}

func newActor(v Volume) *actor {
	return &actor{name: v.Name, state: state{volume: v, uses: map[Key]*use{}}, wake: make(chan struct{}, 1)}
}

func (a *actor) poke() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// run works until the volume is gone or ctx is done.
func (m *Manager) run(ctx context.Context, a *actor) {
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues(logging.KeyVolumeName, a.name))
	for ctx.Err() == nil {
		j, finished := m.next(a)
		if finished {
			return
		}
		if j.op == opWait {
			sleep(ctx, a.wake, j.until)
			continue
		}
		r := m.perform(ctx, j)
		if errors.Is(r.err, fault.ErrCrashed) {
			return
		}
		m.finish(ctx, a, j, r)
	}
}

// next decides on the next step. A volume that is gone leaves the Manager under the same lock
// under which new wishes come in, so none is lost.
func (m *Manager) next(a *actor) (job, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &a.state
	st := plan(s, time.Now())
	switch st.op {
	case opFinish:
		delete(m.actors, a.name)
		return job{}, true
	case opWait:
		return job{step: st}, false
	default: // something is to be done
	}
	j := job{step: st, volume: s.volume, attachment: s.device.attached}
	if u := s.uses[st.key]; u != nil {
		j.want, j.recovered = u.want, u.recovered
	} else {
		j.want = s.anyWant()
	}
	j.prior = begin(s, st)
	return j, false
}

func (s *state) anyWant() *Publication {
	for _, k := range s.keys() {
		if w := s.uses[k].want; w != nil {
			return w
		}
	}
	return nil
}

// finish records the result of a step and tells those whom it concerns.
func (m *Manager) finish(ctx context.Context, a *actor, j job, r result) {
	m.mu.Lock()
	settle(&a.state, j.step, j.prior, r, time.Now(), m.backoff)
	reports := m.reports(a, j, r)
	if u := a.state.uses[j.key]; u == nil {
		m.unindex(j.key.Pod, a.name)
	}
	m.mu.Unlock()

	logStep(ctx, j, r)
	if ctx.Err() != nil {
		return // the call was cut off by our own end, of which nobody needs to be told
	}
	for _, report := range reports {
		m.cfg.Events.Failed(report.pod, report.reason, report.message)
	}
	if j.key.Pod != "" && m.cfg.Changed != nil {
		m.cfg.Changed(j.key.Pod)
	}
}

func logStep(ctx context.Context, j job, r result) {
	logger := klog.FromContext(ctx)
	switch {
	case r.err == nil:
		logger.V(2).Info("Volume step done", "step", j.op, "pod", j.key.Pod)
	case errors.Is(r.err, ErrNotAttached):
		logger.V(4).Info("Waiting for the volume to be attached")
	case errors.Is(r.err, ErrLag):
		logger.V(2).Info("Volume step has to wait", "step", j.op, logging.KeyReason, r.err.Error())
	case ctx.Err() == nil:
		logger.Error(r.err, "Volume step failed", "step", j.op, "pod", j.key.Pod)
	}
}

// sleep waits for a wake-up, for a time (zero: none), or for the end.
func sleep(ctx context.Context, wake <-chan struct{}, until time.Time) {
	var timeout <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-ctx.Done():
	case <-wake:
	case <-timeout:
	}
}
