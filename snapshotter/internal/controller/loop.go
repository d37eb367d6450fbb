package controller

import (
	"context"
	"iter"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/reconcile"
)

// maxSteps is how many steps of one content are made in a row.
const maxSteps = 6

// objects are the contents of snapshots, or those of group snapshots: in the API, and at the driver.
type objects interface {
	// find returns a content of the driver.
	find(name string) (record, bool)
	// all returns the contents of the driver.
	all() iter.Seq[record]
	// named returns the contents of the driver whose snapshot has that name.
	named(name string) []record
	// unwatched returns why the API server refuses to watch the kind, or that of its classes, at present; what is known of them may be old then.
	unwatched() error
	// class returns a class.
	class(name string) (class, bool)
	// patch applies a merge patch to a content or its status, and remembers the answer.
	patch(ctx context.Context, name string, data []byte, subresources ...string) (record, error)
	// learned returns what the status lacks of an answer of the driver.
	learned(r record, s snapshot, now time.Time) map[string]any
	// earlier returns the members of a group snapshot that are not in the status, but elsewhere.
	earlier(r record) []groupv1.VolumeSnapshotInfo
	// cleared returns the status after the deletion.
	cleared(r record) map[string]any

	// check returns an error if the driver does not announce the calls that create.
	check() error
	// create, read and remove call the driver.
	create(ctx context.Context, request createRequest) (snapshot, error)
	read(ctx context.Context, r record, secrets map[string]string) (snapshot, error)
	remove(ctx context.Context, r record, secrets map[string]string) error
	// readsByCreate reports whether the driver is asked about a snapshot by create, in place of read.
	readsByCreate(r record) bool
	// incomplete returns what is wrong with an answer about a snapshot that lacks a part of it.
	incomplete(r record, s snapshot) error
}

// loop brings all contents of one kind to their end.
type loop struct {
	names
	objects
	cfg    *Config
	naming Naming
	queue  *reconcile.Controller[string] // since Run
	memory memory
	waits  waits
}

// reconcile makes the steps that are due for a content.
func (l *loop) reconcile(ctx context.Context, name string) (reconcile.Result, error) {
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("content", name))
	defer func() {
		r, _ := l.find(name)
		l.count(name, r)
	}()
	for range maxSteps {
		if l.unwatched() != nil {
			return reconcile.Result{After: absentPause}, nil
		}
		r, ok := l.find(name)
		if !ok {
			l.memory.forget(name)
			return reconcile.Result{}, nil
		}
		last := l.memory.of(name, r.uid)
		step := plan(l.names, r, last)
		if step == doNothing {
			l.memory.forget(name)
			return reconcile.Result{}, nil
		}
		if pause := last.wait(step, r, time.Now()); pause > 0 {
			return reconcile.Result{After: pause}, l.keepMark(ctx, r, last)
		}
		if err := l.perform(ctx, r, step); err != nil {
			if again, err := l.failed(ctx, r, step, err); !again {
				return reconcile.Result{}, err
			}
		}
	}
	return reconcile.Result{After: time.Millisecond}, nil // others change the content as fast
}

// perform makes one step.
func (l *loop) perform(ctx context.Context, r record, step verdict) error {
	switch step {
	case doNothing:
	case doCreate:
		return l.take(ctx, r)
	case doRelease:
		return l.write(ctx, r, creatingPatch(l.names, r, nil))
	case doRead:
		return l.look(ctx, r)
	case doMembers:
		return l.recordMembers(ctx, r)
	case doDelete:
		return l.delete(ctx, r)
	case doFinish:
		return l.finish(ctx, r)
	}
	return nil
}
