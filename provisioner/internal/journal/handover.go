package journal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// HandOver stores the records for a successor that may begin at once: that leaves them alone for d, while this process goes on with them, and learns which of them are
// closed. No intent is opened any more. With an error, nothing is handed over.
func (j *Journal) HandOver(ctx context.Context, d time.Duration) error {
	if !j.Durable() {
		return errors.New("hand over the records of volumes in progress: they are not stored")
	}
	j.setUntil(time.Now().Add(d))
	if err := j.written(ctx); err != nil {
		j.setUntil(time.Time{})
		return fmt.Errorf("hand over the records of volumes in progress: %w", err)
	}
	return nil
}

// setUntil sets when this process ends its work on what it has handed over.
func (j *Journal) setUntil(at time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.until, j.changed = at, true
}

// busy returns how long this process goes on with records that it has handed over.
func (j *Journal) busy() time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	return max(0, time.Until(j.until))
}

// tell has the successor forget the records that this process has closed since it has handed them over.
func (j *Journal) tell(ctx context.Context, live *coordinationv1.Lease) error {
	j.mu.Lock()
	closed, until := j.closed, j.until
	j.mu.Unlock()
	switch {
	case until.IsZero():
		return fmt.Errorf("write Lease %q: %w", live.Name, ErrSuperseded)
	case len(closed) == 0 || !time.Now().Before(until):
		return nil
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	metav1.SetMetaDataAnnotation(&live.ObjectMeta, AnnotationAbandon, live.Annotations[AnnotationAbandon]+","+strings.Join(closed, ","))
	_, err := j.cfg.Leases.Update(ctx, live, metav1.UpdateOptions{})
	if err != nil {
		err = fmt.Errorf("write Lease %q: %w", live.Name, err)
	}
	if !apierrors.IsConflict(err) { // without an answer the write may have succeeded, and the successor may have another record of the claim by now
		j.mu.Lock()
		defer j.mu.Unlock()
		j.closed = j.closed[len(closed):]
	}
	return err
}

// endWait goes on with the intents that the process before has worked on until now, but for those that it has told to be closed, which the write finds.
func (j *Journal) endWait(ctx context.Context) {
	j.mu.Lock()
	j.changed = true
	j.mu.Unlock()
	j.waitOver = nil
	if err := j.commit(ctx); err != nil && !refuses(err) {
		j.waitOver = time.After(retryPause)
		return
	}
	var awaited []Intent
	for _, intent := range j.List() {
		if intent.Stage == Awaited {
			intent.Stage = Creating
			awaited = append(awaited, intent)
			_ = j.Update(intent) // it may have been closed just now, as its claim was found to be provisioned
		}
	}
	j.adopt(awaited)
}
