package controller

import (
	"context"
	"errors"
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
	if !succeeded(ctx) {
		c.flush(flushCtx)
	}
	c.logUnfinished(ctx)
	return err
}

// outlive returns a context that ends, at the latest, when d has passed since the end of ctx.
func outlive(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(d, cancel) })
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

// succeeded reports whether ctx ended because another controller goes on with the intents: of this process, or of another one, which has the Lease by now.
func succeeded(ctx context.Context) bool {
	var cause interface{ Abort() bool }
	return errors.Is(context.Cause(ctx), ErrSucceeded) || errors.As(context.Cause(ctx), &cause) && cause.Abort()
}

// flush finishes or undoes volumes whose operation is not finished, until ctx ends: where there is no further process, no other would. A volume whose creation is
// not confirmed and whose claim waits for it is requested once more; the next process requests it again by its name.
func (c *Controller) flush(ctx context.Context) {
	var work errgroup.Group
	work.SetLimit(max(1, c.cfg.Settings.Workers))
	for _, intent := range c.cfg.Journal.List() {
		work.Go(func() error {
			c.finish(ctx, intent)
			return nil
		})
	}
	_ = work.Wait() // no function returns an error
}

// finish works on one volume until it is settled, ctx ends, or only another process, or an administrator, can go on.
func (c *Controller) finish(ctx context.Context, intent journal.Intent) {
	ok := true
	for wait := flushPause; ok && intent.Stage != journal.Reported && ctx.Err() == nil; intent, ok = c.cfg.Journal.Get(intent.UID()) {
		var err error
		last := false
		if intent.Stage == journal.Saving {
			_, err = c.saveAgain(ctx, intent)
		} else {
			last = intent.Stage == journal.Creating && c.wanted(intent)
			_, err = c.resume(ctx, intent)
		}
		if err != nil {
			if last {
				return
			}
			klog.FromContext(ctx).V(2).Info("Volume operation failed at shutdown", logging.KeyVolumeName, intent.Spec.Name, logging.KeyReason, backend.Describe(err))
			pause(ctx, wait)
			wait *= 2
		}
	}
}

// logUnfinished logs volumes whose operation is not finished at the end of the process. Those that an administrator has to look for were reported.
func (c *Controller) logUnfinished(ctx context.Context) {
	for _, intent := range c.cfg.Journal.List() {
		logger := klog.FromContext(ctx).WithValues(logging.KeyVolumeName, intent.Spec.Name, logging.KeyVolumeID, intent.VolumeID,
			logging.KeyClaim, klog.KObj(intent.Spec.Claim), logging.KeyState, intent.Stage)
		switch why := c.whyUnwanted(intent); {
		case intent.Stage == journal.Reported, errors.Is(context.Cause(ctx), ErrSucceeded):
		case why != "" && !c.cfg.Journal.Durable():
			logger.Error(nil, "Shutting down with a volume that may be left behind: look for it in the storage system", logging.KeyReason, why)
		default:
			logger.Info("Shutting down with an unfinished volume operation, the next instance goes on with it")
		}
	}
}
