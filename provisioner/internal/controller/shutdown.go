package controller

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/provisioner/internal/backend"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
)

const (
	// FlushTime is how long volumes whose operation is not finished when all calls have ended may take.
	FlushTime = 5 * time.Second
	// saveDrain is how long a running attempt to save a PersistentVolume may take before flush begins.
	saveDrain = 2 * time.Second
	// flushPause is the pause after the first failure of flush; it doubles with each further one.
	flushPause = 250 * time.Millisecond
)

// ErrSucceeded is the cause by which the owner of a Controller ends its context when another Controller of this process
// takes over the intents, so that none is finished in a hurry.
var ErrSucceeded = errors.New("another controller of this process takes over")

// work runs the queues. That of unsaved PersistentVolumes outlives the others, which add to it.
func (c *Controller) work(ctx context.Context) error {
	flushCtx, stop := outlive(ctx, c.cfg.Settings.Drain+FlushTime)
	defer stop()
	saveCtx, stopSaving := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSaving()
	var work, saving errgroup.Group
	saving.Go(func() error { return c.unsaved.Run(saveCtx) })
	work.Go(func() error { return c.claims.Run(ctx) })
	work.Go(func() error { return c.release.Run(ctx) })
	work.Go(func() error { return c.sources.Run(ctx) })
	err := work.Wait()
	stopSaving()
	err = errors.Join(err, saving.Wait())
	if !errors.Is(context.Cause(ctx), ErrSucceeded) {
		c.flush(flushCtx, !superseded(ctx))
	}
	return err
}

// outlive returns a context that ends, at the latest, when d has passed since the end of ctx.
func outlive(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		defer cancel()
		pause(longer, d)
	})
	return longer, func() { stop(); cancel() }
}

// pause waits, at most until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// superseded reports whether ctx ended because the lease is lost: another instance may be at work.
func superseded(ctx context.Context) bool {
	var cause interface{ Abort() bool }
	return errors.As(context.Cause(ctx), &cause) && cause.Abort()
}

// flush finishes or undoes volumes whose operation is not finished, until ctx ends, and logs what is left. The claims of
// volumes that are to be deleted are gone or want nothing of them: no later process would know of these volumes. They come
// first. A volume whose creation is not confirmed and whose claim waits for it is requested once more; the next process
// requests it again by its name.
func (c *Controller) flush(ctx context.Context, leading bool) {
	list := c.cfg.Journal.List()
	slices.SortStableFunc(list, func(a, b journal.Intent) int { return c.flushOrder(a) - c.flushOrder(b) })
	var work errgroup.Group
	work.SetLimit(max(1, c.cfg.Settings.Workers))
	for _, intent := range list {
		if intent.Stage == journal.Reported {
			continue // an administrator has to act
		}
		work.Go(func() error {
			c.finish(ctx, intent, leading)
			return nil
		})
	}
	_ = work.Wait() // no function returns an error
	for _, intent := range c.cfg.Journal.List() {
		if intent.Stage != journal.Reported {
			c.logUnfinished(ctx, intent)
		}
	}
}

// flushOrder returns the place of an intent in flush.
func (c *Controller) flushOrder(intent journal.Intent) int {
	switch {
	case intent.Stage == journal.Saving:
		return 0
	case intent.Stage == journal.Undoing || !c.wanted(intent):
		return 1
	}
	return 2
}

// finish works on one volume until it is settled, ctx ends, or only another process can go on.
func (c *Controller) finish(ctx context.Context, intent journal.Intent, leading bool) {
	ok := true
	for wait := flushPause; ok && intent.Stage != journal.Reported && ctx.Err() == nil; intent, ok = c.cfg.Journal.Get(intent.UID()) {
		again, err := c.finishStep(ctx, intent, leading)
		if !again {
			return
		}
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Volume operation failed at shutdown", logging.KeyVolumeName, intent.Spec.Name, logging.KeyReason, backend.Describe(err))
			pause(ctx, wait)
			wait *= 2
		}
	}
}

// finishStep takes one step for a volume, and reports whether another one makes sense. Without the lease, what another
// instance may be working on is left to that instance: everything but volumes whose claim does not exist any more.
func (c *Controller) finishStep(ctx context.Context, intent journal.Intent, leading bool) (again bool, err error) {
	if intent.Stage == journal.Saving {
		_, err := c.saveAgain(ctx, intent)
		return true, err
	}
	if !leading {
		if c.wanted(intent) {
			return false, nil
		}
		if claim, err := c.liveClaim(ctx, intent.Spec.Claim); claim != nil || err != nil {
			return err != nil, err
		}
	}
	if intent.Stage == journal.Undoing {
		_, err = c.undo(ctx, intent)
		return true, err
	}
	again = !c.wanted(intent)
	_, err = c.resume(ctx, intent)
	return again || err == nil, err
}

// logUnfinished logs a volume whose operation is not finished at the end of the process.
func (c *Controller) logUnfinished(ctx context.Context, intent journal.Intent) {
	logger := klog.FromContext(ctx).WithValues(logging.KeyVolumeName, intent.Spec.Name, logging.KeyVolumeID, intent.VolumeID,
		logging.KeyClaim, klog.KObj(intent.Spec.Claim), logging.KeyState, intent.Stage.String())
	if why := c.whyUnwanted(intent); why != "" && !c.cfg.Journal.Durable() {
		logger.Error(nil, "Shutting down with a volume that may be left behind: look for it in the storage system", logging.KeyReason, why)
		return
	}
	logger.Info("Shutting down with an unfinished volume operation, the next instance goes on with it")
}
