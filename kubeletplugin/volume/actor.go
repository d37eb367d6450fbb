package volume

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/kubeletplugin/fault"
)

// actor owns one volume: it alone issues calls for it.
type actor struct {
	name  string
	state state
	// staging is how long a NodeStageVolume took that has succeeded, until its volume is published; it is the actor's own.
	staging time.Duration
	// wake is signalled when the state has changed; its buffer holds one signal.
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
		j, notices, finished := m.next(a)
		m.send(notices)
		if finished {
			if m.cfg.Released != nil {
				m.cfg.Released(a.name)
			}
			return
		}
		if j.op == opWait {
			m.sleep(ctx, a.wake, j.until)
			continue
		}
		start := m.cfg.Clock.Now()
		r := m.perform(ctx, j)
		if errors.Is(r.err, fault.ErrCrashed) {
			return
		}
		if ctx.Err() == nil {
			m.measure(a, j, r, m.cfg.Clock.Since(start))
		}
		m.finish(ctx, a, j, r)
	}
}

// next decides on the next step, and on the notices to waiting pods. A volume that is gone leaves the Manager
// under the same lock under which pods ask for volumes, so no request is lost.
func (m *Manager) next(a *actor) (j job, notices []report, finished bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, now := &a.state, m.cfg.Clock.Now()
	s.follow()
	notices = s.notices()
	st := plan(s, now)
	switch st.op {
	case opFinish:
		delete(m.actors, a.name)
		return job{}, notices, true
	case opWait:
		return job{step: st}, notices, false
	default: // something is to be done
	}
	j = job{
		step: st, volume: s.volume, attachment: s.device.attached, stagedFor: s.device.stagedFor, stagedAs: s.device.stagedAs,
		attachChanges: s.device.attachChanges, explain: s.device.impatient(now),
	}
	if u := s.uses[st.key]; u != nil {
		j.want = u.want
	} else {
		j.want = s.anyWant()
	}
	if e := s.expansions[st.key.SpecName]; e != nil && st.op == opExpand {
		j.known, j.awaited, j.asked = e.known, len(s.unchecked(st.key.SpecName)) > 0, e.asked
	}
	if st.op == opStage || st.op == opPublish {
		j.refused = m.owners.take(m.made(j), a.name)
	}
	j.prior = begin(s, st)
	s.call, s.since = st.op.call(), now
	return j, notices, false
}

func (s *state) anyWant() *Publication {
	for _, k := range s.keys() {
		if w := s.uses[k].want; w != nil {
			return w
		}
	}
	return nil
}

// finish records the result of a step and reports it to the pods that it concerns.
func (m *Manager) finish(ctx context.Context, a *actor, j job, r result) {
	m.mu.Lock()
	a.state.call = ""
	woken := a.state.wakes(j)
	settle(&a.state, j, r, m.cfg.Clock.Now(), m.backoff)
	m.leave(a, j)
	reports := append(m.reports(a, j, r), m.mapped(j, r)...)
	var since time.Time
	if u := a.state.uses[j.key]; u == nil {
		m.unindex(j.key.Pod, a.name)
	} else if j.op == opPublish && r.err == nil {
		since, u.wantedSince = u.wantedSince, time.Time{}
	}
	m.mu.Unlock()
	m.measureOverall(j, since)

	logStep(ctx, j, r)
	if ctx.Err() != nil {
		return // the end of this process has cut off the call, which is not a failure
	}
	m.send(reports)
	for _, pod := range woken {
		if m.cfg.Changed != nil {
			m.cfg.Changed(pod)
		}
	}
}

// wakes lists the pods to which the end of a step may matter.
func (s *state) wakes(j job) []types.UID {
	switch {
	case j.op == opExpand && j.asked != nil:
		return []types.UID{j.key.Pod}
	case j.op == opExpand:
		return s.unchecked(j.key.SpecName)
	case j.op == opRepublish:
		return nil // the volume is as published as it was
	case j.key.Pod != "":
		return []types.UID{j.key.Pod}
	default:
		return nil
	}
}

func (m *Manager) send(reports []report) {
	for _, r := range reports {
		switch {
		case r.claim != (Claim{}):
			m.cfg.Events.Expansion(r.pod, r.claim, r.reason, r.message)
		case r.reason == ReasonMapped:
			m.cfg.Events.Mapped(r.pod, r.message)
		default:
			m.cfg.Events.Failed(r.pod, r.reason, r.message)
		}
	}
}

func logStep(ctx context.Context, j job, r result) {
	logger := klog.FromContext(ctx)
	switch {
	case r.err == nil && j.op == opExpand && r.look.expanded == 0:
		logger.V(5).Info("Looked at the claim", "pod", j.key.Pod)
	case r.err == nil && j.op == opRepublish:
		logger.V(4).Info("Volume step done", "step", j.op, "pod", j.key.Pod)
	case r.err == nil:
		logger.V(2).Info("Volume step done", "step", j.op, "pod", j.key.Pod)
	case errors.Is(r.err, ErrNotAttached):
		logger.V(4).Info("Waiting for the volume to be attached")
	case errors.Is(r.err, ErrTransient):
		logger.V(2).Info("Volume step has to wait", "step", j.op, logging.KeyReason, r.err.Error())
	case ctx.Err() == nil:
		logger.Error(r.err, "Volume step failed", "step", j.op, "pod", j.key.Pod)
	}
}

// sleep waits for a wake-up, for a time (zero: none), or for the end.
func (m *Manager) sleep(ctx context.Context, wake <-chan struct{}, until time.Time) {
	var timeout <-chan time.Time
	if !until.IsZero() {
		timer := m.cfg.Clock.NewTimer(until.Sub(m.cfg.Clock.Now()))
		defer timer.Stop()
		timeout = timer.C()
	}
	select {
	case <-ctx.Done():
	case <-wake:
	case <-timeout:
	}
}
