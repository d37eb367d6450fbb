package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/metrics"
	"github.com/longshore-csi/longshore/csikit/outcome"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/provisioner/internal/intents"
)

// resume repeats the request of an intent whose outcome is unknown.
func (c *Controller) resume(ctx context.Context, s claimState) (reconcile.Result, error) {
	intent, err := c.renew(ctx, s)
	if err != nil {
		return reconcile.Result{}, c.failedIfWanted(intent, err)
	}
	secrets, err := c.intentSecrets(ctx, intent)
	if err != nil {
		return reconcile.Result{}, c.failedIfWanted(intent, err)
	}
	intent.Secrets = secrets
	if err := c.cfg.Intents.Update(ctx, intent); err != nil {
		return reconcile.Result{}, fmt.Errorf("record request for volume %q: %w", intent.Spec.Name, err)
	}
	return c.attempt(ctx, intent)
}

// renew returns the intent of a claim with a request that is made from what is known now, if the intent allows that and
// the claim still wants the volume. Otherwise, and if no request can be made now, the request stays as it was, unless the
// intent was recovered: then the claim waits until one can be made.
func (c *Controller) renew(ctx context.Context, s claimState) (intents.Intent, error) {
	intent := *s.intent
	if !intent.Renewable && !intent.Recovered || !c.wanted(intent) {
		return intent, nil
	}
	if s.class == nil || s.claim == nil {
		if intent.Recovered {
			return intent, errors.New("the volume may exist, and the StorageClass of the claim does not")
		}
		return intent, nil
	}
	renewed, err := c.prepare(ctx, s)
	switch {
	case err == nil:
		intent.Spec, intent.Request, intent.Recovered = renewed.Spec, renewed.Request, false
	case intent.Recovered:
		return intent, fmt.Errorf("the volume may exist, and no request can be made for it: %w", err)
	default:
		klog.FromContext(ctx).V(2).Info("Request cannot be made again, repeating the last one", logging.KeyReason, describe(err))
	}
	return intent, nil
}

// otherTopology returns a recovered intent with the other form of its request, as far as the topology goes. The record has one
// segment, which the volume is most likely in; one that is elsewhere is found without any.
func otherTopology(intent intents.Intent) intents.Intent {
	request := withSecrets(intent.Request, nil)
	request.AccessibilityRequirements, intent.OtherTopology = intent.OtherTopology, request.GetAccessibilityRequirements()
	intent.Request = request
	return intent
}

// intentSecrets returns the secrets for a call about the volume of an intent: as they are in the cluster, or, when they
// cannot be read, as they were at the last call. Without both, an unwanted volume is dealt with without secrets: the driver
// decides whether it needs them.
func (c *Controller) intentSecrets(ctx context.Context, intent intents.Intent) (map[string]string, error) {
	secrets, err := c.secrets(ctx, intent.Spec.Secrets.Provision)
	logger := klog.FromContext(ctx).WithValues(logging.KeyVolumeName, intent.Spec.Name)
	switch {
	case err == nil:
		return secrets, nil
	case intent.Secrets != nil:
		logger.Info("Secret cannot be read, using its values from the last call", logging.KeyReason, describe(err))
		return intent.Secrets, nil
	case intent.Stage == intents.Undoing || !c.wanted(intent):
		logger.Info("Secret cannot be read, calling the driver without it", logging.KeyReason, describe(err))
		return nil, nil
	}
	return nil, err
}

// attempt calls CreateVolume once and does what follows from the answer.
func (c *Controller) attempt(ctx context.Context, intent intents.Intent) (reconcile.Result, error) {
	volume, err := c.callCreate(metrics.WithMigrated(ctx, intent.Spec.InTree != ""), intent.Request, intent.Secrets)
	plan := planAttempt(attemptState{
		intent:   intent,
		unwanted: c.whyUnwanted(intent),
		topology: intent.Request.GetAccessibilityRequirements() != nil,
		created:  volume,
		err:      err,
	})
	switch plan.verb {
	case attemptSave:
		return c.save(ctx, intent, volume)
	case attemptUndo:
		return c.unwanted(ctx, intent, volume.GetVolumeId(), plan.why)
	case attemptRepeat:
		return reconcile.Result{}, c.repeat(ctx, intent, plan.problem(err))
	case attemptForget, attemptRetry, attemptRest, attemptReschedule:
	}
	if closeErr := c.close(ctx, intent); closeErr != nil {
		return reconcile.Result{}, closeErr
	}
	return c.withoutVolume(ctx, intent, plan.verb, err)
}

// repeat records that a volume may exist which the driver has not confirmed, and returns the error with which the queue
// repeats the request.
func (c *Controller) repeat(ctx context.Context, intent intents.Intent, err error) error {
	if intent.Recovered && !mayStillRun(err) {
		intent = otherTopology(intent)
	}
	intent = uncertain(intent, err, time.Now())
	if updateErr := c.cfg.Intents.Update(ctx, intent); updateErr != nil {
		return fmt.Errorf("record that the outcome for volume %q is unknown: %w", intent.Spec.Name, updateErr)
	}
	return c.failedIfWanted(intent, fmt.Errorf("%w (%s)", err, pendingNote(intent)))
}

// failedIfWanted returns the error of an attempt for the queue to repeat it, and reports it to the user of the claim while
// there is one.
func (c *Controller) failedIfWanted(intent intents.Intent, err error) error {
	claim, ok := c.claim(keyOf(intent.Spec.Claim))
	if !ok || !c.wanted(intent) {
		return c.unsettled(intent, err)
	}
	return c.failed(claim, err)
}

// withoutVolume goes on after the driver has said for certain that there is no volume.
func (c *Controller) withoutVolume(ctx context.Context, intent intents.Intent, verb attemptVerb, err error) (reconcile.Result, error) {
	claim := intent.Spec.Claim
	if verb == attemptForget {
		klog.FromContext(ctx).V(2).Info("Claim is gone and has no volume", logging.KeyVolumeName, intent.Spec.Name)
		return reconcile.Result{}, nil
	}
	if outcome.Of(err) == outcome.Exhausted {
		c.capacity.Exhausted(intent.Spec.Class.Name, intent.Spec.Topology)
	}
	if verb == attemptRest {
		err = fmt.Errorf("%w (retries are delayed: the next one follows in %v, or when the claim, its StorageClass, its VolumeAttributesClass or the secret changes)",
			err, c.cfg.Settings.Retry.Max)
	}
	err = c.failed(claim, err)
	switch verb {
	case attemptRest:
		pause := rest{what: fingerprintOf(intent), until: time.Now().Add(c.cfg.Settings.Retry.Max)}
		c.claimRecords.change(claim.UID, func(r *claimRecord) { r.rest = pause })
		// The next look decides how long it rests: not at all if the request would be another one by now.
		c.claims.Add(keyOf(claim))
		return reconcile.Result{}, nil
	case attemptReschedule:
		c.stepBack(claim)
		return c.reschedule(ctx, claim)
	case attemptRepeat, attemptSave, attemptUndo, attemptForget, attemptRetry:
	}
	return reconcile.Result{}, err
}

// callCreate calls CreateVolume.
func (c *Controller) callCreate(ctx context.Context, request *csi.CreateVolumeRequest, secrets map[string]string) (*csi.Volume, error) {
	var response *csi.CreateVolumeResponse
	kind := "CreateVolume"
	if request.GetVolumeContentSource() != nil {
		kind = "CreateVolume from a source"
	}
	err := c.call(ctx, kind, fmt.Sprintf("create volume %q", request.GetName()), func(ctx context.Context, option grpc.CallOption) (err error) {
		response, err = c.cfg.Driver.CreateVolume(ctx, withSecrets(request, secrets), option)
		return err
	})
	return response.GetVolume(), err
}

// call makes a call that creates or deletes a volume, as soon as the driver may have one more. Calls of one kind take about the same
// time. Its error is a callError.
func (c *Controller) call(ctx context.Context, kind, what string, call func(ctx context.Context, option grpc.CallOption) error) error {
	var to peer.Peer
	var answer error
	waiting := c.calls.Do(ctx, kind, func() error {
		ctx, cancel := context.WithTimeout(ctx, c.cfg.Settings.Timeout)
		defer cancel()
		answer = call(ctx, grpc.Peer(&to))
		if to.Addr == nil {
			return nil // it says nothing about the load of the driver
		}
		return answer
	})
	if err := cmp.Or(answer, waiting); err != nil {
		// gRPC reports the peer of every call for which there was a connection. Without one, nothing was sent.
		return callError{what: what, err: err, unsent: to.Addr == nil}
	}
	return nil
}

// withSecrets returns the request with secrets in it; all else is shared, for topologies are large.
func withSecrets(request *csi.CreateVolumeRequest, secrets map[string]string) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		Name:                      request.GetName(),
		CapacityRange:             request.GetCapacityRange(),
		VolumeCapabilities:        request.GetVolumeCapabilities(),
		Parameters:                request.GetParameters(),
		Secrets:                   secrets,
		VolumeContentSource:       request.GetVolumeContentSource(),
		AccessibilityRequirements: request.GetAccessibilityRequirements(),
		MutableParameters:         request.GetMutableParameters(),
	}
}
