package kube

import (
	"context"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
)

// DefaultAskAgain is the InformerOptions.AskAgain of most kinds that a component can do without: few requests, and an administrator who extends a role
// or installs a CustomResourceDefinition does not wait for long.
const DefaultAskAgain = 5 * time.Minute

// firstAskAgain is the pause after the first refusal, the next is four times as long, up to InformerOptions.AskAgain: an API server that has just started has for a
// moment neither CustomResourceDefinitions nor roles.
const firstAskAgain = 5 * time.Second

// IsUnwatchable reports whether an answer of the API server means that a kind cannot be listed or watched: the role of the component does not allow it
// (Forbidden), or the server does not have the kind (NotFound). Neither changes soon, but for an API server that has just started.
func IsUnwatchable(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) }

// refusals are the answers of the API server to an informer that mean that its kind cannot be watched.
type refusals struct {
	name     string
	askAgain time.Duration // 0: a refusal is an error like any other

	mu sync.Mutex
	// last is why the kind is not watched at present, nil if it is, or that is not known yet. refused is closed while it is set.
	last    error
	refused chan struct{}
}

// wrap returns a ListWatch whose refused requests do not fail, but are repeated with pauses that grow to askAgain, until the API server serves them or ctx ends. To a
// reflector they are slow requests. That way it does not list again because it may list and not watch.
func (r *refusals) wrap(lw *cache.ListWatch) *cache.ListWatch {
	r.refused = make(chan struct{})
	if r.askAgain == 0 {
		return lw
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (list runtime.Object, err error) {
			err = r.repeat(ctx, func() error { list, err = lw.ListWithContextFunc(ctx, opts); return err })
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (w watch.Interface, err error) {
			err = r.repeat(ctx, func() error { w, err = lw.WatchFuncWithContext(ctx, opts); return err })
			if err == nil {
				r.note(ctx, nil)
			}
			return w, err
		},
	}
}

// repeat makes a request until it is not refused, or ctx ends.
func (r *refusals) repeat(ctx context.Context, request func() error) error {
	for pause := min(firstAskAgain, r.askAgain); ; pause = min(4*pause, r.askAgain) {
		err := request()
		if !IsUnwatchable(err) {
			return err
		}
		r.note(ctx, err)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

// note records that the kind is not watched, and why, or with nil that it is.
func (r *refusals) note(ctx context.Context, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.last
	r.last = err
	logger := klog.FromContext(ctx).WithValues("kind", r.name)
	switch {
	case before == nil && err != nil:
		close(r.refused)
		logger.Info("Kind cannot be watched, asking again from time to time", logging.KeyReason, strings.Join(strings.Fields(err.Error()), " "), logging.KeyDelay, r.askAgain)
	case before != nil && err == nil:
		r.refused = make(chan struct{})
		logger.Info("Kind is watched now")
	}
}

// state returns a channel that is closed while there is a reason why the kind is not watched, and that reason.
func (r *refusals) state() (refused <-chan struct{}, last error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refused, r.last
}

// Unwatched returns why the kind is not watched at present: the last answer to list or watch, for which IsUnwatchable is true. nil: it is watched, or the API server
// has not answered yet; HasSynced reports whether the copy is complete then. It is always nil without InformerOptions.AskAgain.
//
// While it is not nil, the copy has no objects or old ones: callers read the objects that they need from the API server.
func (i *Informer[T]) Unwatched() error {
	_, last := i.refusals.state()
	return last
}

// WaitTried returns when the copy is complete or Unwatched says why it is not, or with an error when ctx is done first.
func (i *Informer[T]) WaitTried(ctx context.Context) error {
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	refused, _ := i.refusals.state()
	go func() {
		defer cancel()
		select {
		case <-refused:
		case <-waiting.Done():
		}
	}()
	err := i.WaitSynced(waiting)
	select {
	case <-refused:
		return nil
	default:
		return err
	}
}
