package claim

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
)

const (
	// handOverAfter is how long running calls may take before another instance takes over.
	handOverAfter = time.Second
	// saveDrain is how long a running attempt to save a PersistentVolume may take when all calls have ended.
	saveDrain = 2 * time.Second
)

// ErrSucceeded is the cause by which the owner of a Controller ends its context when another Controller of this process
// takes over the intents.
var ErrSucceeded = errors.New("another controller of this process takes over")

// work runs the queues. That of unsaved PersistentVolumes outlives the others, which add to it.
func (c *Controller) work(ctx context.Context) error {
	saveCtx, stopSaving := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSaving()
	var claims, others, saving errgroup.Group
	claimsEnded := make(chan struct{})
	saving.Go(func() error { return c.unsaved.Run(saveCtx) })
	claims.Go(func() error {
		defer close(claimsEnded)
		return c.claims.Run(ctx)
	})
	others.Go(func() error { return c.release.Run(ctx) })
	others.Go(func() error { return c.sources.Run(ctx) })
	err := others.Wait()
	c.handOver(ctx, claimsEnded)
	err = errors.Join(err, claims.Wait())
	stopSaving()
	err = errors.Join(err, saving.Wait())
	c.logUnfinished(ctx)
	return err
}

// handOver lets another instance begin while calls about claims are running, whose volumes that leaves alone until this process has ended.
func (c *Controller) handOver(ctx context.Context, ended <-chan struct{}) {
	if c.cfg.Resign == nil || errors.Is(context.Cause(ctx), ErrSucceeded) {
		return
	}
	select {
	case <-ended:
		return
	case <-time.After(handOverAfter):
	}
	logger := klog.FromContext(ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveDrain)
	defer cancel()
	if err := c.cfg.Journal.HandOver(ctx, c.cfg.Settings.Drain+saveDrain); err != nil {
		logger.Info("Other instances wait until running calls have ended", logging.KeyReason, err.Error())
		return
	}
	logger.Info("Another instance may take over, running calls go on", logging.KeyTimeout, c.cfg.Settings.Drain)
	c.cfg.Resign()
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
