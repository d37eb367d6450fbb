package fill

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// task is something to fill as a whole.
type task struct {
	// id is that of the volume, of the snapshot or of the group.
	id volume.ID
	// undo deletes it.
	undo func(ctx context.Context) error
}

// job is a task, or a deletion, that is under way.
type job struct {
	task *task
	// cancel ends a copy; its cause is the answer to those who wait.
	cancel context.CancelCauseFunc
	at     atomic.Int32
	// done is closed at the end; then err says how it ended.
	done chan struct{}
	err  error
}

// stage is how far a copy is.
type stage int32

const (
	queued stage = iota
	copying
	elsewhere
	unsteady
	deleting
)

// String reads well after "is still".
func (s stage) String() string {
	switch s {
	case queued:
		return "waiting for other copies to end"
	case copying:
		return "being copied"
	case elsewhere:
		return "being copied by another process"
	case unsteady:
		return "waiting for a moment at which nobody writes"
	case deleting:
		return "being deleted"
	}
	return "unknown"
}

func (j *job) stage() stage { return stage(j.at.Load()) }

func (j *job) enter(s stage) { j.at.Store(int32(s)) }

// start begins a task, or joins the job that is under way for it. The job is
// owned by s: it outlives the call, and ends with Close.
func (s *Services) start(ctx context.Context, t task) *job {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.jobs[t.id]; j != nil {
		return j
	}
	j := &job{task: &t, done: make(chan struct{})}
	if s.ended {
		j.err = fmt.Errorf("copy contents to %q: %w: %w", t.id, volume.ErrBusy, errEnded)
		close(j.done)
		return j
	}
	ctx, j.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	s.jobs[t.id] = j
	go func() {
		defer j.cancel(nil)
		s.end(j, t.id, s.runSafely(ctx, j))
	}()
	return j
}

// runSafely makes an error of a panic: no interceptor covers this goroutine. What
// was to be filled stays, and the next call tries again.
func (s *Services) runSafely(ctx context.Context, j *job) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("copy contents to %q: panic: %v", j.task.id, reason)
			klog.FromContext(ctx).Error(err, "Recovered from a panic in a copy", logging.KeyObject, j.task.id, logging.KeyStack, string(debug.Stack()))
		}
	}()
	return s.run(ctx, j)
}

// end lets those go on who wait for a job.
func (s *Services) end(j *job, id volume.ID, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.jobs, id)
	j.err = err
	close(j.done)
}

// claim ends what is under way for an id, and keeps the place until release.
// Who comes meanwhile is told to call again. interrupted is the task of a copy
// that was ended so.
func (s *Services) claim(ctx context.Context, id volume.ID) (release func(), interrupted *task, err error) {
	mine := &job{cancel: func(error) {}, done: make(chan struct{})}
	mine.enter(deleting)
	for {
		other := s.place(id, mine)
		if other == nil {
			return func() {
				s.end(mine, id, fmt.Errorf("%q: %w: %w", id, volume.ErrBusy, errDeleted))
			}, interrupted, nil
		}
		other.cancel(errDeleted)
		select {
		case <-other.done:
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("%q: wait for the end of what is under way: %w: %w", id, volume.ErrBusy, context.Cause(ctx))
		}
		interrupted = nil
		if other.err != nil {
			interrupted = other.task
		}
	}
}

// place makes a job the one for an id, unless there is another.
func (s *Services) place(id volume.ID, mine *job) (other *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if other = s.jobs[id]; other == nil {
		s.jobs[id] = mine
	}
	return other
}

// run fills what is to be filled, or deletes it.
func (s *Services) run(ctx context.Context, j *job) error {
	err := s.copy(ctx, j)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("copy contents to %q: %w: %w", j.task.id, volume.ErrBusy, context.Cause(ctx))
	case errors.Is(err, volume.ErrNotFound):
		return fmt.Errorf("%w: %w", volume.ErrBusy, err) // another process has deleted it
	}
	klog.FromContext(ctx).Error(err, "Could not copy; deleting what was to be filled", logging.KeyObject, j.task.id)
	if undoErr := j.task.undo(ctx); undoErr != nil {
		return errors.Join(err, fmt.Errorf("delete %q, which cannot be filled: %w", j.task.id, undoErr))
	}
	return err
}

// copy makes the copy, or waits until another process has.
func (s *Services) copy(ctx context.Context, j *job) error {
	cuts := 0
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err := s.copyOnce(ctx, j)
		switch {
		case errors.Is(err, volume.ErrConcurrentWrite):
			if cuts++; cuts == mostCuts {
				return fmt.Errorf("tried %d times: %w", cuts, err)
			}
			klog.FromContext(ctx).V(4).Info("Somebody wrote meanwhile; copying again", logging.KeyObject, j.task.id, logging.KeyReason, err.Error())
			j.enter(unsteady)
		case errors.Is(err, volume.ErrBusy):
			j.enter(elsewhere)
		default:
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (s *Services) copyOnce(ctx context.Context, j *job) error {
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-s.slots }()
	j.enter(copying)
	return s.Copy(ctx, j.task.id, func(ctx context.Context) error { return s.Complete(ctx, j.task.id) })
}
