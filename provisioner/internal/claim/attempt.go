package claim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/metrics"
	"github.com/longshore-csi/longshore/csikit/outcome"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/provisioner/internal/backend"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
)

// resume goes on with an intent. One that another process has finished has its PersistentVolume.
func (c *Controller) resume(ctx context.Context, intent journal.Intent) (reconcile.Result, error) {
	if c.finishedBefore(intent) {
		c.close(intent)
		return reconcile.Result{}, nil
	}
	switch intent.Stage {
	case journal.Creating:
		return c.repeat(ctx, intent)
	case journal.Undoing:
		return c.undo(ctx, intent)
	case journal.Reported:
		return c.reconsider(ctx, intent)
	case journal.Saving, journal.Awaited: // which the queue of unsaved PersistentVolumes does, and another process
	}
	return reconcile.Result{}, nil
}

// repeat repeats the request of an intent whose outcome is unknown.
func (c *Controller) repeat(ctx context.Context, intent journal.Intent) (reconcile.Result, error) {
	secrets, err := c.intentSecrets(ctx, intent)
	if err != nil {
		return reconcile.Result{}, c.failedIfWanted(intent, err)
	}
	intent.Secrets = secrets
	if err := c.cfg.Journal.Update(intent); err != nil {
		return reconcile.Result{}, fmt.Errorf("record request for volume %q: %w", intent.Spec.Name, err)
	}
	return c.attempt(ctx, intent)
}

// intentSecrets returns the secrets for a call about the volume of an intent: as they are in the cluster, or, when they
// cannot be read, as they were at the last call. Without both, an unwanted volume is dealt with without secrets: the driver
// decides whether it needs them.
func (c *Controller) intentSecrets(ctx context.Context, intent journal.Intent) (map[string]string, error) {
	secrets, err := c.secrets(ctx, intent.Spec.Secrets.Provision)
	logger := klog.FromContext(ctx).WithValues(logging.KeyVolumeName, intent.Spec.Name)
	switch {
	case err == nil:
		return secrets, nil
	case intent.Secrets != nil:
		logger.Info("Secret cannot be read, using its values from the last call", logging.KeyReason, backend.Describe(err))
		return intent.Secrets, nil
	case intent.Stage == journal.Undoing || !c.wanted(intent) || intent.Recovered && apierrors.IsNotFound(err):
		logger.Info("Secret cannot be read, calling the driver without it", logging.KeyReason, backend.Describe(err))
		return nil, nil
	}
	return nil, err
}

// attempt calls CreateVolume once and does what follows from the answer.
func (c *Controller) attempt(ctx context.Context, intent journal.Intent) (reconcile.Result, error) {
	volume, err := c.backend.Create(metrics.WithMigrated(ctx, intent.Spec.InTree != ""), intent.Request, intent.Secrets)
	plan := planAttempt(attemptState{
		intent:   intent,
		now:      time.Now(),
		settle:   c.settlePeriod(),
		unwanted: c.whyUnwanted(intent),
		topology: intent.Request.GetAccessibilityRequirements() != nil,
		created:  volume,
		err:      err,
	})
	switch plan.verb {
	case attemptSave:
		return c.save(ctx, intent, volume)
	case attemptFound:
		return c.found(ctx, intent, volume)
	case attemptUndo:
		return c.unwanted(ctx, intent, volume.GetVolumeId(), plan.why)
	case attemptRepeat:
		if plan.why != "" { // the answer was no error
			err = errors.New(plan.why)
		}
		return reconcile.Result{}, c.doubt(intent, plan.until, err)
	case attemptForget, attemptRetry, attemptInfeasible, attemptReschedule:
	}
	if plan.verb == attemptForget && outcome.Code(err) == codes.AlreadyExists {
		return reconcile.Result{}, c.leave(ctx, intent, backend.Describe(err))
	}
	c.close(intent)
	return c.withoutVolume(ctx, intent, plan.verb, err)
}

// doubt records that a volume may exist which the driver has not confirmed, and returns the error with which the queue
// repeats the request.
func (c *Controller) doubt(intent journal.Intent, until time.Time, err error) error {
	if intent.Uncertain.IsZero() {
		intent.Uncertain = time.Now()
	}
	intent.Settles = until
	if updateErr := c.cfg.Journal.Update(intent); updateErr != nil {
		return fmt.Errorf("record that the outcome for volume %q is unknown: %w", intent.Spec.Name, updateErr)
	}
	return c.failedIfWanted(intent, fmt.Errorf("%w (outcome unknown: the volume may exist, the same request is repeated)", err))
}

// SettlePeriod returns a time that is longer than any call to the driver with a timeout may take: after it, a final answer to a request says that no attempt with
// that request has made a volume, or is about to.
func SettlePeriod(timeout time.Duration) time.Duration {
	return max(time.Hour, 10*timeout)
}

func (c *Controller) settlePeriod() time.Duration { return SettlePeriod(c.cfg.Settings.Timeout) }

// failedIfWanted returns the error of an attempt for the queue to repeat it, and reports it to the user of the claim while
// there is one.
func (c *Controller) failedIfWanted(intent journal.Intent, err error) error {
	claim, ok := c.claim(keyOf(intent.Spec.Claim))
	if !ok || !c.wanted(intent) {
		return c.unsettled(intent, err)
	}
	return c.failed(claim, err)
}

// withoutVolume goes on after the driver has said for certain that there is no volume.
func (c *Controller) withoutVolume(ctx context.Context, intent journal.Intent, verb attemptVerb, err error) (reconcile.Result, error) {
	claim := intent.Spec.Claim
	if verb == attemptForget {
		c.forgotten(ctx, intent, err)
		return reconcile.Result{}, nil
	}
	if outcome.Of(err) == outcome.Exhausted {
		c.capacity.Exhausted(intent.Spec.Class.Name, intent.Spec.Topology)
	}
	switch verb {
	case attemptRetry:
		if outcome.Code(err) == codes.AlreadyExists {
			err = fmt.Errorf("%w (another request has made a volume of this name: delete it, or make the claim and its StorageClass ask for the same)", err)
		}
	case attemptInfeasible:
		err = fmt.Errorf("%w (the next attempt follows in %v, or when the claim or its StorageClass changes)", err, c.cfg.Settings.Retry.Max)
		return reconcile.Result{}, reconcile.Slow(c.failed(claim, err))
	case attemptReschedule:
		_ = c.failed(claim, err)  // the scheduler goes on
		if c.isContested(claim) { // else it is the scheduler's
			c.cfg.Competition.StepBack(claim.UID)
		}
		return c.reschedule(ctx, claim)
	case attemptRepeat, attemptSave, attemptFound, attemptUndo, attemptForget:
	}
	return reconcile.Result{}, c.failed(claim, err)
}

// forgotten goes on after the volume of a claim that is gone, or of a former process, was found not to exist. A claim that is still there is provisioned.
func (c *Controller) forgotten(ctx context.Context, intent journal.Intent, err error) {
	klog.FromContext(ctx).V(2).Info("There is no volume of this name", logging.KeyVolumeName, intent.Spec.Name, logging.KeyReason, backend.Describe(err))
	if claim, ok := c.claim(keyOf(intent.Spec.Claim)); ok && c.relevant(claim) {
		c.claims.Wake(keyOf(claim))
	} else if !intent.Uncertain.IsZero() {
		c.cfg.Events.Normal(c.csiDriver(), reasonSettled, fmt.Sprintf("Volume %q of claim %s, which is gone, was not made: the driver has answered with errors for %v, at last: %s",
			intent.Spec.Name, klog.KObj(intent.Spec.Claim), c.settlePeriod(), backend.Describe(err)))
	}
}
