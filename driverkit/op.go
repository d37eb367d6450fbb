package driverkit

import (
	"context"
	"fmt"
	"path"
	"slices"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/longshore-csi/longshore/csikit/keymutex"
	"github.com/longshore-csi/longshore/driverkit/state"
)

// operation is one call of a CO as the middleware sees it: perform is the one place where calls wait for each other and errors become gRPC statuses.
type operation struct {
	// name is that of an object to create: one call at a time has it.
	name string
	// ids are those of the objects that the call is about: one call at a time has each. Calls that only read have none.
	ids []string
	// sources are those of the objects that are copied: calls that copy one share it, and none has it whose ids it is among.
	sources []string
	// secrets are removed from the text of an error.
	secrets Secrets
	// invalid is what is wrong with the request; then nothing is locked or done.
	invalid error
}

// locks are those of the controller and the node of one process. The call that needs the lock of a name takes that one first, and ids in one order, so that there is no deadlock.
type locks struct {
	names, ids keymutex.Locks[string]
}

// faultPointKey is the key in a context under which a call has its kit.
type faultPointKey struct{}

// FaultPoint is a point of a driver's own work at which a crash or the end of a call may matter, such as before and after a request to the storage system. ctx is that of the call. Tests of
// package drivertest let the driver die there, and the call end; otherwise nothing happens.
func FaultPoint(ctx context.Context, name string) {
	if k, ok := ctx.Value(faultPointKey{}).(*kit); ok {
		k.at(ctx, name)
	}
}

// perform waits for the operation's locks until the call's deadline, and then runs do.
func perform[T any](ctx context.Context, s *kit, op operation, do func(context.Context) (T, error)) (T, error) {
	var none T
	if op.invalid != nil {
		return none, statusOf(op.invalid, op.secrets)
	}
	unlock, err := s.locks.lock(ctx, op)
	if err != nil {
		return none, statusOf(err, op.secrets)
	}
	defer unlock()
	ctx = context.WithValue(ctx, faultPointKey{}, s)
	changes := op.name != "" || len(op.ids) > 0
	if changes {
		s.at(ctx, "called")
	}
	answer, err := do(ctx)
	if err != nil {
		return none, statusOf(err, op.secrets)
	}
	if changes {
		s.at(ctx, "done")
	}
	return answer, nil
}

// lock takes all locks of an operation, or none and returns ErrBusy, so that the CO retries.
func (l *locks) lock(ctx context.Context, op operation) (unlock func(), err error) {
	var held []func()
	unlock = func() {
		for _, u := range slices.Backward(held) {
			u()
		}
	}
	take := func(lock func(context.Context, string) (func(), error), key string) error {
		u, err := lock(ctx, key)
		if err != nil {
			return fmt.Errorf("wait for another call about %q: %w: %w", key, ErrBusy, err)
		}
		held = append(held, u)
		return nil
	}
	if op.name != "" {
		err = take(l.names.Lock, op.name)
	}
	for _, id := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(op.ids, op.sources)))) {
		lock := l.ids.RLock
		if slices.Contains(op.ids, id) {
			lock = l.ids.Lock
		}
		if err == nil {
			err = take(lock, id)
		}
	}
	if err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// free waits until no call has the lock of an id, and reports whether it had to wait: then what the caller knows of the object may be outdated.
func (l *locks) free(ctx context.Context, id string) (waited bool, err error) {
	unlock, free := l.ids.TryLock(id)
	if !free {
		unlock, err = l.lock(ctx, operation{ids: []string{id}})
	}
	if err != nil {
		return true, err
	}
	unlock()
	return !free, nil
}

// kit is what the services of a driver share.
type kit struct {
	Options

	driver     Driver
	locks      locks
	background Background
	// lock is that of the state directory, here so that it lives as long as the work that refers to the kit.
	lock *state.Lock
	// started says that Driver.Probe has succeeded once.
	started atomic.Bool
}

// valueOf is what a function of a driver has returned: nothing in it where it has returned nil.
func valueOf[T any](result *T) (value T) {
	if result != nil {
		value = *result
	}
	return value
}

// at is a fault point of the call that ctx belongs to.
func (k *kit) at(ctx context.Context, point string) {
	if k.FaultPoint != nil {
		method, _ := grpc.Method(ctx)
		k.FaultPoint(ctx, path.Base(method)+":"+point)
	}
}
