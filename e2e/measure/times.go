package measure

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/longshore-csi/longshore/e2e/testbed"
)

// StorageProvisioner is the annotation by which kube-controller-manager asks a provisioner for the volume of a claim.
const StorageProvisioner = "volume.kubernetes.io/storage-provisioner"

// Times notes when the claims of a namespace are created, when kube-controller-manager asks for their volumes, when these are created and
// bound, and when the pods of the same names run, as a watcher sees it.
type Times struct {
	namespace                               string
	mu                                      sync.Mutex
	created, asked, volumes, bound, mounted map[string]time.Time
	changed                                 chan struct{}
}

// WatchTimes watches a namespace until ctx ends. A claim and its pod must have one name.
func WatchTimes(ctx context.Context, t testing.TB, client kubernetes.Interface, namespace string) *Times {
	t.Helper()
	w := &Times{
		namespace: namespace, created: map[string]time.Time{}, asked: map[string]time.Time{}, volumes: map[string]time.Time{},
		bound: map[string]time.Time{}, mounted: map[string]time.Time{}, changed: make(chan struct{}, 1),
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	handler := cache.ResourceEventHandlerFuncs{AddFunc: w.see, UpdateFunc: func(_, obj any) { w.see(obj) }}
	core := factory.Core().V1()
	for _, informer := range []cache.SharedIndexInformer{core.PersistentVolumeClaims().Informer(), core.PersistentVolumes().Informer(), core.Pods().Informer()} {
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
		if o.Annotations[StorageProvisioner] != "" {
			first(w.asked, o.Name, now)
		}
		if o.Status.Phase == corev1.ClaimBound {
			first(w.bound, o.Name, now)
		}
	case *corev1.PersistentVolume:
		if claim := o.Spec.ClaimRef; claim != nil && claim.Namespace == w.namespace {
			first(w.volumes, claim.Name, now)
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

func first[K comparable](times map[K]time.Time, name K, now time.Time) {
	if _, ok := times[name]; !ok {
		times[name] = now
	}
}

// Wait waits until n pods run, and returns the times from the creation of each claim until it was bound, and until its pod ran. Like the other methods it fails
// the test when nothing has changed for as long as testbed.Patience.
func (w *Times) Wait(t testing.TB, n int) (bound, mounted []time.Duration) {
	t.Helper()
	w.wait(t, n, func() bool { return len(w.bound) == n && len(w.mounted) == n })
	return w.between(w.created, w.bound), w.between(w.created, w.mounted)
}

// WaitBound waits until n claims are bound. It returns the times from the request for a volume to its PersistentVolume, and from the
// creation of the claim until it is bound.
func (w *Times) WaitBound(t testing.TB, n int) (volumes, bound []time.Duration) {
	t.Helper()
	w.wait(t, n, func() bool { return len(w.volumes) == n && len(w.bound) == n })
	return w.between(w.asked, w.volumes), w.between(w.created, w.bound)
}

// WaitClaims waits until n claims are bound.
func (w *Times) WaitClaims(t testing.TB, n int) {
	t.Helper()
	w.wait(t, n, func() bool { return len(w.bound) == n })
}

// WaitPods waits until n pods run, and returns the times from the creation of each, which the caller knows by name, until it ran.
func (w *Times) WaitPods(t testing.TB, n int, created map[string]time.Time) []time.Duration {
	t.Helper()
	w.wait(t, n, func() bool { return len(w.mounted) == n })
	return w.between(created, w.mounted)
}

// WaitVolumes waits until n claims have a PersistentVolume, and returns when each was seen.
func (w *Times) WaitVolumes(t testing.TB, n int) []time.Time {
	t.Helper()
	w.wait(t, n, func() bool { return len(w.volumes) == n })
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Values(w.volumes))
}

// LastVolume returns the time at which the last PersistentVolume so far was seen, and LastBound that of the last bound claim.
func (w *Times) LastVolume() time.Time { return w.last(w.volumes) }

// LastBound implements what LastVolume says.
func (w *Times) LastBound() time.Time { return w.last(w.bound) }

// last returns the last of some times.
func (w *Times) last(times map[string]time.Time) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.MaxFunc(slices.Collect(maps.Values(times)), time.Time.Compare)
}

// wait gives up when nothing has changed for as long as a state is waited for.
func (w *Times) wait(t testing.TB, n int, done func() bool) {
	t.Helper()
	deadline := time.NewTimer(testbed.Patience)
	defer deadline.Stop()
	for {
		w.mu.Lock()
		end, nBound, nMounted := done(), len(w.bound), len(w.mounted)
		w.mu.Unlock()
		if end {
			return
		}
		select {
		case <-w.changed:
			deadline.Reset(testbed.Patience)
		case <-deadline.C:
			t.Fatalf("of %d claims %d are bound and %d mounted", n, nBound, nMounted)
		}
	}
}

func (w *Times) between(begins, ends map[string]time.Time) []time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]time.Duration, 0, len(ends))
	for name, end := range ends {
		all = append(all, end.Sub(begins[name]))
	}
	return all
}
