package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/outcome"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// failed records a failure for users, and the time of the next attempt; what is left to do is to be decided again then. An error that the
// API server will overcome is returned, for the queue to retry.
func (l *loop) failed(ctx context.Context, r record, step verdict, err error) (again bool, _ error) {
	fromDriver := outcome.FromDriver(err)
	switch {
	case errors.Is(err, kube.ErrGone):
		return false, nil
	case ctx.Err() != nil, !fromDriver && (kube.IsStale(err) || kube.IsTransient(err)):
		return false, err
	}
	before := l.memory.of(r.name, r.uid).of(step, r)
	last := before
	last.err, last.code = outcome.Text(err), codes.OK
	if fromDriver {
		last.code = outcome.Code(err)
	}
	pause := reconcile.Pause(l.cfg.Retry, r.name, last.failures)
	last.failures++
	last.due = time.Now().Add(pause)
	l.memory.put(r.name, last)
	klog.FromContext(ctx).Error(err, "Step did not succeed", "step", step.String(), logging.KeyDelay, pause)

	reason, message := l.describe(r, step, last, err)
	same := r.status.failed && (r.status.err == message || before.failures > 0 && fromDriver && before.code == last.code)
	if same {
		l.cfg.Events.Warning(l.reference(r), reason, r.status.err) // it is still so
		return true, nil
	}
	l.cfg.Events.Warning(l.reference(r), reason, message)
	err = kube.IgnoreGone(l.writeStatus(ctx, r, failure(r, message, time.Now())))
	return err == nil, err
}

// describe returns the reason and the message of a failure for users.
func (l *loop) describe(r record, step verdict, last attempt, err error) (reason, message string) {
	text := outcome.Text(err)
	switch step {
	case doCreate:
		source := "volume " + first(r.volumes)
		if l.what != "snapshot" {
			source = fmt.Sprintf("volumes %v", r.volumes)
		}
		message = fmt.Sprintf("Failed to create %s: failed to take %s of the %s: %q", l.what, l.what, source, text)
		switch {
		case !mayExist(l.names, r, last):
		case r.deleting:
			message += "; the outcome is unknown, so that the content stays until the driver knows it (the annotation " + snapshotapi.AnnAbandon +
				" on the content gives the " + l.what + " up, which may then stay at the storage system)"
		default:
			message += "; the outcome is unknown, so that the driver is asked again, also if the " + l.what + " is deleted meanwhile"
		}
		return l.createFailed, kube.Cut(message, maxMessage)
	case doNothing, doRelease, doRead, doMembers:
	case doDelete, doFinish:
		var part *stepError
		if errors.As(err, &part) {
			text = part.Error()
		}
		return l.deleteFailed, kube.Cut(text, maxMessage)
	}
	return l.updateFailed, kube.Cut(fmt.Sprintf("Failed to check and update %s content: %s", l.what, text), maxMessage)
}

func first(volumes []string) string {
	if len(volumes) == 0 {
		return ""
	}
	return volumes[0]
}

// reference names a content in an event.
func (l *loop) reference(r record) *corev1.ObjectReference {
	return &corev1.ObjectReference{Kind: l.kind, APIVersion: l.version, Name: r.name, UID: r.uid, ResourceVersion: r.version}
}
