package reconcile

import (
	"context"
	"errors"
)

// abortKey is the key of the channel that WithAbort puts into a context.
type abortKey struct{}

// WithAbort returns ctx with a channel whose closing means that running work must not be finished: a Controller that
// runs by this context, or one made from it, then cancels the work at once instead of waiting for it, also when the
// context ended before. Closing it while the context lasts does nothing yet.
func WithAbort(ctx context.Context, abort <-chan struct{}) context.Context {
	return context.WithValue(ctx, abortKey{}, abort)
}

// aborted returns the channel of WithAbort, nil without one.
func aborted(ctx context.Context) <-chan struct{} {
	abort, _ := ctx.Value(abortKey{}).(<-chan struct{})
	return abort
}

// mustAbort reports whether ctx ended for a reason that forbids to finish running work.
func mustAbort(ctx context.Context) bool {
	var cause interface{ Abort() bool }
	return errors.As(context.Cause(ctx), &cause) && cause.Abort()
}
