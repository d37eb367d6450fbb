package controller

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	storagev1 "k8s.io/api/storage/v1"
)

// wakeSpacing is the time between two VolumeAttachments that are retried because the driver has come back.
const wakeSpacing = 20 * time.Millisecond

// woken remembers when all VolumeAttachments were retried last. The zero value is ready to use.
type woken struct {
	mu   sync.Mutex
	last time.Time
}

// begin reports whether enough time has passed to do it again.
func (w *woken) begin(now time.Time, interval time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.last.IsZero() && now.Sub(w.last) < interval {
		return false
	}
	w.last = now
	return true
}

// DriverChanged retries what waits, and logs if the driver does not attach.
func (c *Controller) DriverChanged(ctx context.Context) {
	c.LogPublish(ctx)
	c.WakeAll()
}

// WakeAll retries all VolumeAttachments of the driver that wait, one after the other, because the driver has come back. A driver
// that comes back again within --retry-interval-max, as one that crashes under its load does, gets only what the backoff of
// each VolumeAttachment allows. What fails again continues with its backoff.
func (c *Controller) WakeAll() {
	if !c.woken.begin(time.Now(), c.cfg.Retry.Max) {
		return
	}
	vas := slices.DeleteFunc(c.vas.List(), func(va *storagev1.VolumeAttachment) bool { return !c.ours(va) })
	slices.SortFunc(vas, func(x, y *storagev1.VolumeAttachment) int { return cmp.Compare(x.Name, y.Name) })
	var pause time.Duration
	for _, va := range vas {
		if c.step(va) != stepNone {
			c.vaQueue.AddAfter(va.Name, pause)
			pause += wakeSpacing
		}
	}
}
