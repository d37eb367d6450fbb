package view

import (
	"context"
	"errors"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/poll"
)

const (
	// optionalPoll is the pause between two attempts to list a kind that the cluster may lack.
	optionalPoll = time.Minute
	// optionalPollOfNode is the shortest such pause of an instance for one node, of which there may be thousands; the longest is twice that.
	optionalPollOfNode = 15 * time.Minute
	// optionalGrace is how long the first lists of such kinds may hold up the work.
	optionalGrace = 10 * time.Second
)

// optional watches a kind that the cluster may lack, or that the provisioner may not be permitted to list, from when a list
// succeeds. The work does not depend on it.
type optional struct {
	informer
	// list lists one object.
	list func(ctx context.Context) error
	// poll is the pause between two attempts.
	poll time.Duration
	// tried is closed once the kind is known or could not be listed.
	tried     chan struct{}
	closeOnce sync.Once

	// mu guards missing, which says why the last list did not succeed.
	mu      sync.Mutex
	missing error
}

// newOptional returns what watches a kind by its informer.
func newOptional[T kube.Object, L runtime.Object](resource kube.Resource[T, L], watcher *kube.Informer[T], cfg Config) *optional {
	poll := optionalPoll
	if cfg.Node.Alone() {
		poll = wait.Jitter(optionalPollOfNode, 1)
	}
	return &optional{informer: watcher, poll: poll, tried: make(chan struct{}), list: func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
		defer cancel()
		_, err := resource.List(ctx, metav1.ListOptions{Limit: 1})
		return err
	}}
}

// run watches the kind until ctx ends.
func (o *optional) run(ctx context.Context) {
	logged := klog.NewContext(ctx, klog.FromContext(ctx).WithValues(logging.KeyName, o.Name()))
	if poll.Until(logged, o.poll, "Kind cannot be watched, claims that wait for an object of it are retried from time to time", func(ctx context.Context) error {
		err := o.list(ctx)
		if err != nil {
			o.conclude(err)
		}
		return err
	}) != nil {
		return // ctx has ended
	}
	var synced sync.WaitGroup
	synced.Go(func() {
		if o.WaitSynced(ctx) == nil {
			o.conclude(nil)
		}
	})
	if err := o.Run(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Informer ended")
	}
	synced.Wait()
}

// conclude notes the result of a list.
func (o *optional) conclude(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.missing = err
	o.closeOnce.Do(func() { close(o.tried) })
}

// known returns nil if all objects are known, or says why they are not.
func (o *optional) known() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.HasSynced():
		return nil
	case o.missing != nil:
		return o.missing
	}
	return errors.New("the first list is not complete")
}

// wait waits until the kind is known or could not be listed, at most until ctx ends.
func (o *optional) wait(ctx context.Context) {
	select {
	case <-o.tried:
	case <-ctx.Done():
	}
}
