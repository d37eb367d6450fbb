package demo

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// narrator prints what happens to the objects of the examples, as it happens.
type narrator struct {
	out   io.Writer
	start time.Time

	factories []informers.SharedInformerFactory
	running   errgroup.Group

	mu   sync.Mutex
	last map[string]string
}

// narrate watches until ctx ends; the caller then waits by stop. Without snapshots (nil), it does not watch any.
func narrate(ctx context.Context, client kubernetes.Interface, snapshots snapshotapi.VolumeSnapshots, out io.Writer) (*narrator, error) {
	n := &narrator{out: out, start: time.Now(), last: map[string]string{}}
	all := informers.NewSharedInformerFactory(client, 0)
	own := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	for _, informer := range []cache.SharedIndexInformer{
		own.Core().V1().PersistentVolumeClaims().Informer(), own.Core().V1().Pods().Informer(), own.Core().V1().Events().Informer(),
		all.Core().V1().PersistentVolumes().Informer(), all.Storage().V1().VolumeAttachments().Informer(),
	} {
		if _, err := informer.AddEventHandler(n.handler()); err != nil {
			return nil, fmt.Errorf("watch: %w", err)
		}
	}
	n.factories = []informers.SharedInformerFactory{own, all}
	for _, factory := range n.factories {
		factory.Start(ctx.Done())
		for kind, ok := range factory.WaitForCacheSync(ctx.Done()) {
			if !ok {
				n.stop()
				return nil, fmt.Errorf("watch %v: %w", kind, ctx.Err())
			}
		}
	}
	if snapshots != nil {
		if err := n.follow(ctx, snapshots); err != nil {
			n.stop()
			return nil, err
		}
	}
	return n, nil
}

// follow watches snapshots, and returns when it knows those that were there before.
func (n *narrator) follow(ctx context.Context, snapshots snapshotapi.VolumeSnapshots) error {
	informer := kube.NewInformer(snapshots, kube.InformerOptions[*snapshotv1.VolumeSnapshot]{Name: "VolumeSnapshot"})
	informer.OnChange(func(before, after *snapshotv1.VolumeSnapshot) {
		switch {
		case after == nil:
			n.gone(before)
		case informer.HasSynced():
			n.print(after)
		}
	})
	n.running.Go(func() error { return informer.Run(ctx) })
	return informer.WaitSynced(ctx)
}

// stop waits until nothing is watched any more. The context of narrate must have ended.
func (n *narrator) stop() {
	for _, factory := range n.factories {
		factory.Shutdown()
	}
	_ = n.running.Wait() // an informer ends with an error only if it is started twice
}

func (n *narrator) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, initial bool) {
			if !initial {
				n.print(obj)
			}
		},
		UpdateFunc: func(_, obj any) { n.print(obj) },
		DeleteFunc: n.gone,
	}
}

func (n *narrator) print(obj any) {
	key, err := cache.MetaNamespaceKeyFunc(obj)
	line := describe(obj)
	if err != nil || line == "" {
		return
	}
	n.say(fmt.Sprintf("%T/%s", obj, key), line)
}

func (n *narrator) gone(obj any) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	if _, event := obj.(*corev1.Event); event {
		return
	}
	if key, err := cache.MetaNamespaceKeyFunc(obj); err == nil {
		n.say(fmt.Sprintf("%T/%s", obj, key), fmt.Sprintf("%s is gone", short(obj)))
	}
}

// say prints a line unless it is the last one printed for the same object.
func (n *narrator) say(key, line string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.last[key] == line {
		return
	}
	n.last[key] = line
	fmt.Fprintf(n.out, "  %5.2fs  %s\n", time.Since(n.start).Seconds(), line)
}

// title prints a heading.
func (n *narrator) title(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fmt.Fprintf(n.out, "\n"+format+"\n", args...)
}
