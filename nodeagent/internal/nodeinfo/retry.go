package nodeinfo

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
)

const (
	retryStart    = 100 * time.Millisecond
	retryMax      = 30 * time.Second
	conflictDelay = 10 * time.Millisecond
)

// retryAlways retries whatever the error is.
func retryAlways(error) bool { return true }

// retryTransient reports whether an error may go away by itself: a conflict, an
// API server that is away or busy, a Node that is about to be created.
func retryTransient(err error) bool {
	if errors.Is(err, ErrCollision) {
		return false
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true // the request did not get an answer
	}
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err), apierrors.IsAlreadyExists(err),
		apierrors.IsServerTimeout(err), apierrors.IsTimeout(err), apierrors.IsTooManyRequests(err),
		apierrors.IsInternalError(err), apierrors.IsServiceUnavailable(err):
		return true
	}
	return status.Status().Code >= 500
}

// retry runs write until it succeeds, retriable denies the error, or ctx ends.
// Attempts of several drivers never overlap, but the pauses between them do: a
// driver whose write keeps failing holds up no other.
func (w *Writer) retry(ctx context.Context, what string, retriable func(error) bool, write func(context.Context) error) error {
	backoff := wait.Backoff{Duration: retryStart, Factor: 2, Jitter: 0.1, Cap: retryMax, Steps: math.MaxInt}
	logged := ""
	for {
		err := w.attempt(ctx, write)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || !retriable(err) {
			return fmt.Errorf("%s: %w", what, err)
		}
		delay := conflictDelay
		if !apierrors.IsConflict(err) {
			delay = backoff.Step()
		}
		level := 0
		if err.Error() == logged || apierrors.IsConflict(err) {
			level = 4
		}
		logged = err.Error()
		klog.FromContext(ctx).V(level).Info("Node information is not written, retrying", logging.KeyNode, w.cfg.NodeName,
			logging.KeyReason, err.Error(), logging.KeyDelay, delay)
		if !pause(ctx, delay) {
			return fmt.Errorf("%s: %w: %w", what, ctx.Err(), err)
		}
	}
}

// attempt runs write while no other attempt runs.
func (w *Writer) attempt(ctx context.Context, write func(context.Context) error) error {
	unlock, err := w.turn.Lock(ctx, struct{}{})
	if err != nil {
		return err
	}
	defer unlock()
	return write(ctx)
}

// pause reports whether delay passed before ctx ended.
func pause(ctx context.Context, delay time.Duration) bool {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
