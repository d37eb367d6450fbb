package kubetest_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/seeds"
)

// follower keeps a copy by a watch, as an informer does, and checks the order of the events.
type follower struct {
	watch   watch.Interface
	objects map[string]string // name -> resourceVersion
	version int
}

func (f *follower) follow(t *testing.T) {
	t.Helper()
	for {
		synctest.Wait()
		select {
		case event := <-f.watch.ResultChan():
			pv, ok := event.Object.(*corev1.PersistentVolume)
			if !ok {
				t.Fatalf("want a volume, got %T", event.Object)
			}
			var version int
			if _, err := fmt.Sscan(pv.ResourceVersion, &version); err != nil || version <= f.version {
				t.Fatalf("versions grow: %d, then %s", f.version, pv.ResourceVersion)
			}
			f.version = version
			_, known := f.objects[pv.Name]
			if known == (event.Type == watch.Added) {
				t.Fatalf("%s %s, known: %t", event.Type, pv.Name, known)
			}
			f.objects[pv.Name] = pv.ResourceVersion
			if event.Type == watch.Deleted {
				delete(f.objects, pv.Name)
			}
		default:
			return
		}
	}
}

// Random clients: what a watcher knows is always what a list returns, and every answer is one that the
// rules allow.
func TestWatchAgreesWithList(t *testing.T) {
	t.Parallel()
	seeds.Each(t, func(t *testing.T, seed uint64) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 2)) //nolint:gosec // no secret
			client := kubetest.New().Client().PersistentVolumes()
			f := &follower{objects: map[string]string{}}
			f.watch = must[watch.Interface](t)(client.Watch(t.Context(), metav1.ListOptions{}))
			defer f.watch.Stop()
			for step := range 200 {
				err := randomRequest(t, random, client)
				if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) {
					t.Fatalf("step %d: %v", step, err)
				}
				f.follow(t)
				list := must[*corev1.PersistentVolumeList](t)(client.List(t.Context(), metav1.ListOptions{}))
				stored := map[string]string{}
				for _, pv := range list.Items {
					stored[pv.Name] = pv.ResourceVersion
					if pv.DeletionTimestamp != nil && len(pv.Finalizers) == 0 {
						t.Fatalf("step %d: %s should be gone", step, pv.Name)
					}
				}
				if d := cmp.Diff(stored, f.objects); d != "" {
					t.Fatalf("step %d (-list +watch):\n%s", step, d)
				}
			}
		})
	})
}

// randomRequest does something to one of five volumes.
func randomRequest(t *testing.T, random *rand.Rand, client kube.PersistentVolumes) error {
	t.Helper()
	ctx, name := t.Context(), fmt.Sprintf("pv-%d", random.IntN(5))
	switch random.IntN(5) {
	case 0:
		var finalizers []string
		if random.IntN(2) == 0 {
			finalizers = []string{"f"}
		}
		_, err := client.Create(ctx, volume(name, finalizers...), metav1.CreateOptions{})
		return err
	case 1:
		pv, err := client.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		pv.Finalizers = slices.DeleteFunc(pv.Finalizers, func(string) bool { return random.IntN(2) == 0 })
		if random.IntN(4) == 0 {
			pv.ResourceVersion = "1" // stale, but for the very first write
		}
		_, err = client.Update(ctx, pv, metav1.UpdateOptions{})
		return err
	case 2:
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{"n":"%d"}}}`, random.IntN(2))
		_, err := client.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	case 3:
		patch := fmt.Appendf(nil, `{"status":{"phase":"Phase%d"}}`, random.IntN(2))
		_, err := client.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	}
	return client.Delete(ctx, name, metav1.DeleteOptions{})
}
