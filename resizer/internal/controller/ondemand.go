package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// refusedPause is the time until a kind that the API server has refused is asked for again: the role may have been extended.
const refusedPause = 5 * time.Minute

// onDemand is an informer of a kind that few claims need: it starts when it is needed first, so that a cluster that has many such
// objects, or a role without the right to read them, costs nothing.
type onDemand[T kube.Object] struct {
	// make returns the informer, and run runs a function in the background until the controller ends.
	make func() *kube.Informer[T]
	run  func(func(context.Context) error)

	mu       sync.Mutex
	informer *kube.Informer[T]
	refused  error
	until    time.Time // refused counts until then
}

// get returns the informer with a complete copy, after list, a request for one object, has shown that the kind may be read.
// It returns an error when the server has no such kind, when the role does not allow to read it, and when ctx ends first.
func (d *onDemand[T]) get(ctx context.Context, list func(context.Context) error) (*kube.Informer[T], error) {
	informer, err := d.started(ctx, list)
	if err != nil {
		return nil, err
	}
	return informer, informer.WaitSynced(ctx)
}

func (d *onDemand[T]) started(ctx context.Context, list func(context.Context) error) (*kube.Informer[T], error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.informer != nil:
		return d.informer, nil
	case time.Now().Before(d.until):
		return nil, d.refused
	}
	informer := d.make()
	if err := list(ctx); err != nil {
		err = fmt.Errorf("list %s: %w", informer.Name(), err)
		if isRefused(err) {
			d.refused, d.until = err, time.Now().Add(refusedPause)
		}
		return nil, err
	}
	d.informer = informer
	d.run(informer.Run)
	return informer, nil
}

// isRefused reports whether a kind cannot be read: the role does not allow it, or the server does not have it.
func isRefused(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) }
