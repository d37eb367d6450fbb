package leader

import (
	"context"
	"errors"

	"k8s.io/klog/v2"
)

// Serve is Run for a component that outlives its leadership: when the Lease is lost and lead has returned, it waits for the next election
// and calls lead again. It returns when ctx ends, or when lead returns while this instance leads. standby is called before each election,
// and what it returns after it; nil: nothing is called.
//
// Nothing of one call may be left for the next: lead makes new controllers, which read their objects again.
func Serve(ctx context.Context, cfg Config, standby func(ctx context.Context) (stop func()), lead func(ctx context.Context) error) error {
	for {
		stop := func() {}
		if standby != nil {
			stop = standby(ctx)
		}
		err := Run(ctx, cfg, lead)
		stop()
		if !errors.Is(err, ErrLost) || ctx.Err() != nil {
			return err
		}
		klog.FromContext(ctx).Error(err, "Stopped work, waiting for the next election")
	}
}
