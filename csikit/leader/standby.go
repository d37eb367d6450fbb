package leader

import (
	"context"
	"errors"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"
)

// watchTime is the longest time for which one watch is used.
const watchTime = 5 * time.Minute

// errNotSeen means that the Lease was never read.
var errNotSeen = errors.New("lease was not read yet")

// standBy waits until another attempt to acquire the Lease is worthwhile. It watches the Lease, and returns as soon as that has no
// holder any more or expires. Where the Lease may not be watched, or cannot be, it pauses.
func (e *elector) standBy(ctx context.Context) {
	watching, cancel := context.WithTimeout(ctx, watchTime)
	defer cancel()
	hangs := time.AfterFunc(e.untilExpiry(), cancel)
	changes, err := e.watch(watching)
	hangs.Stop()
	switch {
	case watching.Err() != nil:
		return
	case err != nil:
		e.reportUnwatched(ctx, err)
		wait(ctx, nil, e.pause())
		return
	}
	defer changes.Stop()
	e.follow(watching, changes)
}

// reportUnwatched logs once that the Lease may not be watched.
func (e *elector) reportUnwatched(ctx context.Context, err error) {
	if apierrors.IsForbidden(err) && !e.unwatched {
		e.unwatched = true
		klog.FromContext(ctx).Info("Lease may not be watched, it is read now and then instead. Allow watch of leases for a faster failover")
	}
}

// follow observes the changes of the Lease until it has no holder, or expires, or the watch ends.
func (e *elector) follow(ctx context.Context, changes watch.Interface) {
	for {
		expiry := time.NewTimer(e.untilExpiry())
		select {
		case <-ctx.Done():
		case <-expiry.C:
		case change, ok := <-changes.ResultChan():
			expiry.Stop()
			lease, isLease := change.Object.(*coordinationv1.Lease)
			if !ok || !isLease { // the watch has ended: not at once again
				wait(ctx, nil, e.pause()/retryFactor)
				return
			}
			if e.observe(ctx, lease); e.seen.holder != "" && change.Type != watch.Deleted {
				continue
			}
		}
		expiry.Stop()
		return
	}
}

// untilExpiry is the time until the Lease is acquired unless it changes: some more than it is valid for, as client-go's elector may lead
// a moment longer, and not the same for all that wait.
func (e *elector) untilExpiry() time.Duration {
	return time.Until(e.observed.Add(time.Duration(e.seen.duration)*time.Second)) + e.pause() - time.Duration((1-jitter)*float64(e.cfg.RetryPeriod))
}

// watch begins to watch the Lease, from what was seen last.
func (e *elector) watch(ctx context.Context) (watch.Interface, error) {
	if e.lease == nil {
		return nil, errNotSeen
	}
	return e.cfg.Client.Leases(e.cfg.Namespace).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + e.cfg.Name, ResourceVersion: e.lease.ResourceVersion})
}
