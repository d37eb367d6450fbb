package e2e

import (
	"context"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Times notes when the claims of a namespace are created and bound, and when the pods of the same names run, as a watcher
// sees it.
type Times struct {
	mu                      sync.Mutex
	created, bound, mounted map[string]time.Time
	changed                 chan struct{}
}

// WatchTimes begins to watch. A claim and its pod have one name.
func WatchTimes(ctx context.Context, t testing.TB, client kubernetes.Interface, namespace string) *Times {
	t.Helper()
	w := &Times{created: map[string]time.Time{}, bound: map[string]time.Time{}, mounted: map[string]time.Time{}, changed: make(chan struct{}, 1)}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	handler := cache.ResourceEventHandlerFuncs{AddFunc: w.see, UpdateFunc: func(_, obj any) { w.see(obj) }}
	for _, informer := range []cache.SharedIndexInformer{factory.Core().V1().PersistentVolumeClaims().Informer(), factory.Core().V1().Pods().Informer()} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			t.Fatal(err)
		}
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return w
}

func (w *Times) see(obj any) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	switch o := obj.(type) {
	case *corev1.PersistentVolumeClaim:
		first(w.created, o.Name, now)
		if o.Status.Phase == corev1.ClaimBound {
			first(w.bound, o.Name, now)
		}
	case *corev1.Pod:
		if o.Status.Phase == corev1.PodRunning {
			first(w.mounted, o.Name, now)
		}
	}
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

func first(times map[string]time.Time, name string, now time.Time) {
	if _, ok := times[name]; !ok {
		times[name] = now
	}
}

// Wait waits until n pods run and returns the times from the claims' creation on.
func (w *Times) Wait(t testing.TB, n int) (bound, mounted []time.Duration) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		w.mu.Lock()
		nBound, nMounted := len(w.bound), len(w.mounted)
		w.mu.Unlock()
		if nBound == n && nMounted == n {
			return w.since(w.bound), w.since(w.mounted)
		}
		select {
		case <-w.changed:
		case <-deadline.C:
			t.Fatalf("of %d claims %d are bound and %d mounted", n, nBound, nMounted)
		}
	}
}

func (w *Times) since(ends map[string]time.Time) []time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []time.Duration
	for name, end := range ends {
		all = append(all, end.Sub(w.created[name]))
	}
	return all
}
