package reconcile

import (
	"context"
	"time"

	"github.com/longshore-csi/longshore/csikit/flagset"
)

// Pause returns the pause after the failure of a key that has failed before that many times in a row: the pauses of a Controller, for
// work whose retries are not those of its key.
func Pause[K comparable](retry flagset.Retry, key K, failures int) time.Duration {
	return spread(key, failures, exponential(retry.Start, retry.Max, failures))
}

// Slow returns an error that Reconcile ends with when a retry makes no sense unless the inputs of the key change: the next attempt comes
// after the longest pause of Config.Retry.
func Slow(err error) error { return slowError{err} }

type slowError struct{ error }

// Unwrap returns the error that Slow was called with.
func (e slowError) Unwrap() error { return e.error }

// Progress notes, in a Reconcile that goes on after a successful write of its own, that the inputs of the key have been decided about as they are now:
// if the next step fails, the key waits until they change from that. ctx is that of Reconcile.
func Progress(ctx context.Context) {
	if note, ok := ctx.Value(progressKey{}).(func()); ok {
		note()
	}
}

// progressKey is the key of the function of Progress in the context of Reconcile.
type progressKey struct{}
