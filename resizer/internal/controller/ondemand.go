package controller

import (
	"context"
	"sync"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// onDemand is an informer of a kind that few claims need: it starts when it is needed first, so that a cluster that has many such
// objects, or a role without the right to read them, costs nothing.
type onDemand[T kube.Object] struct {
	// make returns the informer, which has AskAgain, and run runs a function in the background until the controller ends.
	make func() *kube.Informer[T]
	run  func(func(context.Context) error)

	mu       sync.Mutex
	informer *kube.Informer[T]
}

// get returns the informer with a complete copy. It returns an error that kube.IsUnwatchable recognizes when the kind is not watched, and another one when ctx ends first.
func (d *onDemand[T]) get(ctx context.Context) (*kube.Informer[T], error) {
	informer := d.started()
	if err := informer.WaitTried(ctx); err != nil {
		return nil, err
	}
	if err := informer.Unwatched(); err != nil {
		return nil, err
	}
	return informer, informer.WaitSynced(ctx)
}

func (d *onDemand[T]) started() *kube.Informer[T] {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.informer == nil {
		d.informer = d.make()
		d.run(d.informer.Run)
	}
	return d.informer
}
