package backend

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/driverkit"
)

// jobs are the copies in progress. A copy may take longer than the call that began it: it goes on, and a repeated call finds it by its name. Nothing of it is
// on disk but its incomplete contents, so that after a crash it begins again.
type jobs struct {
	mu sync.Mutex
	// running are the copies in progress, by the name of the new object.
	running map[string]*job
	ended   sync.WaitGroup
	stop    context.CancelFunc
	ctx     context.Context //nolint:containedctx // That of all copies, which are longer than calls.
}

// job is one copy.
type job struct {
	// sources are the keys of the volumes and snapshots that are copied: they must not be deleted or expanded meanwhile.
	sources []string
	done    chan struct{}
	err     error // Valid when done is closed.
}

// start makes jobs possible until close.
func (j *jobs) start(ctx context.Context) {
	j.ctx, j.stop = context.WithCancel(context.WithoutCancel(ctx))
	j.running = map[string]*job{}
}

// close cancels all copies, and waits for their ends.
func (j *jobs) close() {
	if j.stop != nil {
		j.stop()
	}
	j.ended.Wait()
}

// run makes a copy under a name, or waits for the one that an earlier call began. When ctx ends first the copy goes on, and the error says so.
func (j *jobs) run(ctx context.Context, name string, sources []string, work func(ctx context.Context) error) error {
	j.mu.Lock()
	running := j.running[name]
	if running == nil {
		running = &job{sources: sources, done: make(chan struct{})}
		j.running[name] = running
		j.ended.Add(1)
		go j.work(klog.NewContext(j.ctx, klog.FromContext(ctx)), name, running, work)
	}
	j.mu.Unlock()
	select {
	case <-running.done:
		return running.err
	case <-ctx.Done():
		return fmt.Errorf("%s is being copied, which continues; call again: %w: %w", name, driverkit.ErrBusy, context.Cause(ctx))
	}
}

func (j *jobs) work(ctx context.Context, name string, running *job, work func(ctx context.Context) error) {
	defer j.ended.Done()
	defer close(running.done)
	defer func() {
		if cause := recover(); cause != nil {
			klog.FromContext(ctx).Error(fmt.Errorf("%v", cause), "A copy panicked", logging.KeyName, name, logging.KeyStack, string(debug.Stack()))
			running.err = fmt.Errorf("copy %s: internal error: %v", name, cause)
		}
		j.mu.Lock()
		defer j.mu.Unlock()
		delete(j.running, name)
	}()
	running.err = work(ctx)
	if running.err != nil && ctx.Err() != nil {
		running.err = errors.Join(driverkit.ErrBusy, running.err) // The driver stops; the next one copies again.
	}
}

// checkSource refuses to change what is being copied, with an ErrInUse.
func (j *jobs) checkSource(key string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	for name, running := range j.running {
		if slices.Contains(running.sources, key) {
			return fmt.Errorf("%s is being copied to %s: %w", key, name, driverkit.ErrInUse)
		}
	}
	return nil
}

// volumeKey and snapshotKey name sources.
func volumeKey(id string) string   { return driverkit.Source{Volume: id}.String() }
func snapshotKey(id string) string { return driverkit.Source{Snapshot: id}.String() }
