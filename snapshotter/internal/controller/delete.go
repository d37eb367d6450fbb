package controller

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/outcome"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// delete deletes the snapshot, then lets the content go.
func (l *loop) delete(ctx context.Context, r record) error {
	ref, err := writeSecret(l.names, r)
	var secrets map[string]string
	if err == nil {
		secrets, err = l.secret(ctx, ref)
	}
	if err != nil {
		return &stepError{"Failed to get " + l.what + " credentials", err}
	}
	klog.FromContext(ctx).V(2).Info("Deleting "+l.what, logging.KeySnapshotID, r.handle())
	if err := l.callRemove(ctx, r, secrets); err != nil {
		return &stepError{"Failed to delete " + l.what, err}
	}
	klog.FromContext(ctx).V(2).Info("Deleted "+l.what, logging.KeySnapshotID, r.handle())
	if fields := l.cleared(r); len(fields) > 0 && len(r.finalizers) > 1 { // without others' finalizers, the content goes with the next patch
		if err := l.writeStatus(ctx, r, fields); err != nil {
			return &stepError{"Failed to clear content status", err}
		}
	}
	if current, ok := l.find(r.name); ok && current.uid == r.uid {
		return l.finish(ctx, current)
	}
	return nil
}

func (l *loop) callRemove(ctx context.Context, r record, secrets map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	return l.remove(ctx, r, secrets)
}

// finish removes the finalizer.
func (l *loop) finish(ctx context.Context, r record) error {
	patch := map[string]any{"metadata": map[string]any{"uid": r.uid}}
	setFinalizers(patch, r, slices.DeleteFunc(slices.Clone(r.finalizers), func(f string) bool { return f == l.finalizer }))
	if err := l.write(ctx, r, patch); err != nil || !r.has(snapshotapi.AnnAbandon) {
		return err
	}
	l.abandoned(ctx, r)
	return nil
}

// abandoned says that a snapshot stays, or may come to exist, at the storage system.
func (l *loop) abandoned(ctx context.Context, r record) {
	id, advice := r.handle(), "delete it at the storage system"
	switch {
	case r.retain, r.member:
		return
	case id == "" && !mayExist(l.names, r, l.memory.of(r.name, r.uid)):
		return
	case id == "":
		id, advice = l.naming.name(r.ref.UID), "if the driver has taken it, or takes it yet, "+advice
	}
	klog.FromContext(ctx).Info("Gave up a "+l.what, logging.KeySnapshotID, id)
	l.cfg.Events.Warning(l.reference(r), l.abandonedReason, kube.Cut(fmt.Sprintf("Gave up %s %q, as the annotation %s demands: %s", l.what, id, snapshotapi.AnnAbandon, advice), maxMessage))
}

// stepError is the failure of a part of a step.
type stepError struct {
	part string
	err  error
}

// Error implements error.
func (e *stepError) Error() string { return e.part + ": " + outcome.Text(e.err) }

// Unwrap returns the cause.
func (e *stepError) Unwrap() error { return e.err }
