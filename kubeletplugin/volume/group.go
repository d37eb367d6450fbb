package volume

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/kubeletplugin/fault"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/fsgroup"
)

// A pod gets an event about a change of the group that takes long: first after groupPatience, then every groupInterval, as from a
// kubelet.
const (
	groupPatience = 30 * time.Second
	groupInterval = time.Minute
	// groupGrace is how long a change that was interrupted may take to end.
	groupGrace = 5 * time.Second
)

// changesGroup reports whether the files of the volume are given to the fsGroup of the pod, unless the driver mounts with it. As in a
// kubelet this follows each NodePublishVolume, also that for a running pod after a restart: files that the driver has made since
// do not have the group.
func (p *Publication) changesGroup() bool { return p.ChangeGroup && p.FSGroup != nil && !p.ReadOnly }

// groupChanges lists the volumes whose files have to get a group.
func groupChanges(s *state) []candidate {
	var all []candidate
	for _, k := range s.keys() {
		if u := s.uses[k]; u.want != nil && u.mount == present && u.groupPending {
			all = append(all, candidate{opChangeGroup, k, &u.retryState})
		}
	}
	return all
}

// changeGroup changes the group of all files of a published volume, however long it takes, unless the pod is dropped.
func (m *Manager) changeGroup(ctx context.Context, j job) result {
	untilDropped, end := m.untilDropped(ctx, j.key, j.volume.Name)
	defer end()
	var (
		files atomic.Int64
		done  fsgroup.Result
	)
	err := m.between(fault.BeforeChangeGroup, fault.AfterChangeGroup, func() (err error) {
		defer m.reportProgress(untilDropped, j, &files)()
		done, err = m.walk(untilDropped, fsgroup.Change{
			Path:  m.cfg.Root.Target(j.key.Pod, j.key.SpecName),
			Group: *j.want.FSGroup, OnRootMismatch: j.want.OnRootMismatch,
		}, &files)
		return err
	})
	switch {
	case err == nil:
		return result{group: &done}
	case untilDropped.Err() != nil && ctx.Err() == nil:
		return result{} // the pod is gone, so this is no failure
	default:
		return result{err: fmt.Errorf("give the files of volume %q to fsGroup %d: %w", j.volume.Handle, *j.want.FSGroup, err)}
	}
}

// walk changes the group until ctx is done. What a dead file system holds up in a system call, which nothing interrupts, is left behind: NodeUnpublishVolume of
// some drivers ends it by a forced unmount.
func (m *Manager) walk(ctx context.Context, change fsgroup.Change, files *atomic.Int64) (fsgroup.Result, error) {
	type outcome struct {
		done fsgroup.Result
		err  error
	}
	ended := make(chan outcome, 1)
	go func() {
		done, err := m.cfg.changeGroup(ctx, change, files)
		ended <- outcome{done, err}
	}()
	select {
	case o := <-ended:
		return o.done, o.err
	case <-ctx.Done():
	}
	timer := m.cfg.Clock.NewTimer(groupGrace)
	defer timer.Stop()
	select {
	case o := <-ended:
		return o.done, o.err
	case <-timer.C():
		klog.FromContext(ctx).Info("A system call on the files of a volume does not return, going on without it", logging.KeyPath, change.Path)
		return fsgroup.Result{}, ctx.Err()
	}
}

// untilDropped returns a context that ends when the use is dropped, or with end.
func (m *Manager) untilDropped(ctx context.Context, k Key, name string) (untilDropped context.Context, end func()) {
	untilDropped, cancel := context.WithCancel(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	u := m.actors[name].state.uses[k]
	if u.unwanted() { // since the step was planned
		cancel()
	}
	u.interrupt = cancel
	return untilDropped, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		u.interrupt = nil
		cancel()
	}
}

// reportProgress sends events to the pod from time to time until stop is called.
func (m *Manager) reportProgress(ctx context.Context, j job, files *atomic.Int64) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		timer := m.cfg.Clock.NewTimer(groupPatience)
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-timer.C():
			}
			timer.Reset(groupInterval)
			m.cfg.Events.Failed(j.want.Pod, ReasonGroupInProgress, fmt.Sprintf(
				"giving the files of volume %q to fsGroup %d takes long: %d files processed; fsGroupChangePolicy OnRootMismatch skips volumes whose root directory has the group",
				j.key.SpecName, *j.want.FSGroup, files.Load()))
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// settleGroup records a change of the group.
func settleGroup(s *state, j job, r result, now time.Time, b backoff) {
	u := s.uses[j.key]
	switch {
	case r.group != nil:
		u.groupPending, u.groupAwaited, u.groupFailures, u.recovered = false, false, 0, false
		u.reset()
	case r.err != nil && !u.unwanted():
		u.failures = u.groupFailures
		u.fail(r.err, now, b)
		u.groupFailures = u.failures
		if u.groupAwaited { // the mount may be dead, which NodePublishVolume of some drivers repairs; a kubelet repeats it as well
			u.mount = uncertain
		}
	default: // interrupted
	}
}

// groupReports lists the events that a finished change of the group causes.
func (s *state) groupReports(j job, done fsgroup.Result) []report {
	u := s.uses[j.key]
	if done.Refused == 0 || u.refusalReported {
		return nil
	}
	u.refusalReported = true
	return []report{{pod: j.want.Pod, reason: ReasonGroupRefused, message: fmt.Sprintf(
		"volume %q: the group or permissions of %d files stay unchanged, so the pod may be denied access to them; the first error is: %v",
		j.key.SpecName, done.Refused, done.Refusal)}}
}
