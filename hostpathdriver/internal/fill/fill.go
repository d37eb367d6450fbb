// Package fill makes the copies that volumes and snapshots with a source need.
// Its decorator starts a copy when something was made that is still to be
// filled, and lets the call wait for it. A copy that takes longer goes on
// without the call: the CO is told to call again, and then waits for the same
// copy. What cannot be filled is deleted, so that nothing half-made is left.
//
// A driver whose storage system copies by itself does not need this package:
// it tells in its answers when it is ready.
package fill

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// DefaultWorkers is how many copies are made at a time: one keeps a disk busy,
// some more keep a short copy from waiting for a long one.
const DefaultWorkers = 4

// While another process copies, or a workload writes to what is to be copied at
// one moment, a copy is tried again after a pause that doubles from the first
// to the longest.
const (
	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
)

// mostCuts is how often a moment is looked for at which nobody writes: in twenty
// seconds, as a file system that has little to do writes every few seconds.
const mostCuts = 10

// Config configures the decorator.
type Config struct {
	// Next does the work; it is decorated to be idempotent.
	Next volume.Services
	// Workers is how many copies are made at a time; zero means
	// DefaultWorkers.
	Workers int
}

// Services decorates services that say of what they make that it is to be
// filled. Calls that neither make nor delete something go straight through.
type Services struct {
	volume.Services

	// slots has a token for each copy that is being made.
	slots chan struct{}

	mu sync.Mutex
	// jobs are under way, by the id of what is filled as a whole.
	jobs  map[volume.ID]*job
	ended bool
}

var _ volume.Services = (*Services)(nil)

var (
	errEnded   = errors.New("the driver has ended")
	errDeleted = errors.New("it is being deleted")
)

// Open decorates, and goes on with the copies that an earlier process left.
// Close ends the copies.
func Open(ctx context.Context, cfg Config) (*Services, error) {
	workers := cfg.Workers
	if workers <= 0 {
		workers = DefaultWorkers
	}
	s := &Services{Services: cfg.Next, slots: make(chan struct{}, workers), jobs: map[volume.ID]*job{}}
	if err := s.resume(ctx); err != nil {
		return nil, errors.Join(err, s.Close(ctx))
	}
	return s, nil
}

func (s *Services) resume(ctx context.Context) error {
	unfilled, err := s.Unfilled(ctx)
	if err != nil {
		return fmt.Errorf("look for unfinished copies: %w", err)
	}
	for _, id := range unfilled {
		t, err := s.taskOf(ctx, id)
		if errors.Is(err, volume.ErrNotFound) || errors.Is(err, volume.ErrBusy) {
			continue // it was deleted, or its deletion has begun
		}
		if err != nil {
			return fmt.Errorf("go on with the copy to %q: %w", id, err)
		}
		s.start(ctx, t)
	}
	return nil
}

// taskOf finds out what an id stands for.
func (s *Services) taskOf(ctx context.Context, id volume.ID) (task, error) {
	found, err := s.Get(ctx, id)
	if err == nil {
		return s.volumeTask(found), nil
	}
	if !errors.Is(err, volume.ErrNotFound) {
		return task{}, err
	}
	snapshot, err := s.GetSnapshot(ctx, id)
	if err == nil {
		return s.snapshotTask(snapshot), nil
	}
	if !errors.Is(err, volume.ErrNotFound) {
		return task{}, err
	}
	group, err := s.GetGroup(ctx, id, nil)
	if err != nil {
		return task{}, err
	}
	return s.groupTask(group), nil
}

// Close ends the copies, which the next process goes on with, and waits for
// that until ctx ends.
func (s *Services) Close(ctx context.Context) error {
	s.mu.Lock()
	s.ended = true
	left := make([]*job, 0, len(s.jobs))
	for _, j := range s.jobs {
		left = append(left, j)
	}
	s.mu.Unlock()
	for _, j := range left {
		j.cancel(errEnded)
	}
	for _, j := range left {
		select {
		case <-j.done:
		case <-ctx.Done():
			return fmt.Errorf("end copies: %w", context.Cause(ctx))
		}
	}
	return nil
}

// fill waits until a task is done.
func (s *Services) fill(ctx context.Context, t task) error {
	j := s.start(ctx, t)
	select {
	case <-j.done:
		return j.err
	case <-ctx.Done():
		return fmt.Errorf("%q: its contents are still %v; call again: %w: %w", t.id, j.stage(), volume.ErrBusy, context.Cause(ctx))
	}
}

// filled is the error of a call whose copy has been made, and that has looked
// again. What has been deleted since, and maybe made again, is for the CO to
// call for once more.
func filled(err error, filling bool) error {
	switch {
	case errors.Is(err, volume.ErrNotFound):
		return fmt.Errorf("%w: %w", volume.ErrBusy, err)
	case err == nil && filling:
		return fmt.Errorf("it was deleted and made again; call again: %w", volume.ErrBusy)
	}
	return err
}

// remove deletes something, after it has ended the copy into it. While it is
// being deleted no other copy is started.
func (s *Services) remove(ctx context.Context, id volume.ID, call func() error) error {
	release, interrupted, err := s.claim(ctx, id)
	if err != nil {
		return err
	}
	err = call()
	release()
	if err != nil && interrupted != nil {
		klog.FromContext(ctx).V(2).Info("Going on with a copy, as it could not be deleted", logging.KeyObject, id)
		s.start(ctx, *interrupted)
	}
	return err
}
