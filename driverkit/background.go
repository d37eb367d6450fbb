package driverkit

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/driverkit/internal/doing"
)

const (
	// answerEarly is how long before its deadline a call has its answer, or a tenth of what is left: the CO does not see an answer after the deadline.
	answerEarly = time.Second
	// errorsKept is how long the error of work is kept for a call that asks for it.
	errorsKept = time.Hour
)

// Background does work that must not end with the call that has begun it: a check of a file system, a copy that takes longer than a CO waits. A repeated call with the same key waits for the
// same work. The zero value is ready. It has no memory of a former process: work must be such that it can begin again, and what is done already is found by it.
type Background struct {
	mu     sync.Mutex
	works  map[string]*work
	closed bool
	ended  sync.WaitGroup
}

// work is that of one key, until a call has its error.
type work struct {
	began, ended time.Time
	uses         []string
	waiting      int // calls
	doing        *doing.What
	cancel       context.CancelFunc
	done         chan struct{}
	err          error // to be read after done
}

// Do does work under a key, which names it in errors, or waits for the end of what an earlier call has begun. Shortly before the deadline of ctx, or at its end, the work goes on, and the answer
// is an ErrRunning that says what is done and since when. An error of work for which no call has waited is the answer of the next Do with the key, within an hour; a success is found by the work
// itself. The context of the work has the values of ctx; only Close ends it. What the work uses is for User.
func (b *Background) Do(ctx context.Context, key string, do func(ctx context.Context) error, uses ...string) error {
	w, err := b.join(ctx, key, do, uses, 1)
	if err != nil {
		return err
	}
	return b.wait(ctx, key, w)
}

// Start begins work as Do does, unless there is work under the key, and does not wait for it.
func (b *Background) Start(ctx context.Context, key string, do func(ctx context.Context) error, uses ...string) error {
	_, err := b.join(ctx, key, do, uses, 0)
	return err
}

// Wait waits as Do does, if there is work under the key.
func (b *Background) Wait(ctx context.Context, key string) error {
	return b.Do(ctx, key, nil)
}

// User returns the key of work that uses something; empty if none does.
func (b *Background) User(of string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, w := range b.works {
		if w.ended.IsZero() && slices.Contains(w.uses, of) {
			return key
		}
	}
	return ""
}

// Close ends the contexts of all work, and waits for the end of the work or of ctx, whose error it returns. No work begins any more.
func (b *Background) Close(ctx context.Context) error {
	b.mu.Lock()
	b.closed = true
	for _, w := range b.works {
		w.cancel()
	}
	b.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		b.ended.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %s", context.Cause(ctx), b.running())
	}
}

// running describes all work that has not ended.
func (b *Background) running() (text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, w := range b.works {
		if w.ended.IsZero() {
			text += w.describe(key) + "; "
		}
	}
	return text
}

// join returns the work of a key, which is begun if there is none, and for which one more call waits, or none; nil if there is none to begin.
func (b *Background) join(ctx context.Context, key string, do func(ctx context.Context) error, uses []string, waiting int) (*work, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.works[key]
	if w == nil && do != nil {
		if err := b.mayBegin(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w: %w", key, ErrBusy, err)
		}
		w = b.begin(ctx, key, do, uses)
	}
	if w != nil {
		w.waiting += waiting
	}
	return w, nil
}

// errClosed is the error of work that is asked for after Close.
var errClosed = errors.New("the driver is about to end")

// mayBegin reports whether work may begin. b.mu is held.
func (b *Background) mayBegin(ctx context.Context) error {
	if b.closed {
		return errClosed
	}
	return ctx.Err()
}

// begin begins work. b.mu is held.
func (b *Background) begin(ctx context.Context, key string, do func(ctx context.Context) error, uses []string) *work {
	for other, w := range b.works {
		if !w.ended.IsZero() && time.Since(w.ended) > errorsKept {
			delete(b.works, other) // the CO has given up
		}
	}
	if b.works == nil {
		b.works = map[string]*work{}
	}
	w := &work{began: time.Now(), uses: uses, done: make(chan struct{})}
	ctx, w.doing = doing.Begin(context.WithoutCancel(ctx))
	ctx, w.cancel = context.WithCancel(ctx)
	b.works[key] = w
	b.ended.Go(func() {
		defer w.cancel()
		err := safely(ctx, key, do)
		if err != nil && ctx.Err() != nil {
			err = errors.Join(ErrBusy, err) // it was cut short
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		w.ended, w.err = time.Now(), err
		close(w.done)
		switch {
		case err == nil || w.waiting > 0:
			delete(b.works, key)
		default:
			klog.FromContext(ctx).Error(err, "Work in the background has failed; the next call is answered with this error", logging.KeyName, key)
		}
	})
	return w
}

// safely makes an error of a panic.
func safely(ctx context.Context, key string, do func(ctx context.Context) error) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			klog.FromContext(ctx).Error(fmt.Errorf("%v", cause), "Work in the background panicked", logging.KeyName, key, logging.KeyStack, string(debug.Stack()))
			err = fmt.Errorf("%s: internal error: %v", key, cause)
		}
	}()
	return do(ctx)
}

// wait waits for the end of work; nil has ended.
func (b *Background) wait(ctx context.Context, key string, w *work) error {
	if w == nil {
		return nil
	}
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-min(answerEarly, time.Until(deadline)/10)))
		defer cancel()
	}
	select {
	case <-w.done:
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	w.waiting--
	if w.ended.IsZero() {
		return fmt.Errorf("%s: %w: %w", w.describe(key), ErrRunning, context.Cause(ctx))
	}
	if b.works[key] == w {
		delete(b.works, key)
	}
	return w.err
}

// describe says what is done and since when.
func (w *work) describe(key string) string {
	return fmt.Sprintf("%s: %s runs for %v", key, w.doing, time.Since(w.began).Round(time.Second))
}
