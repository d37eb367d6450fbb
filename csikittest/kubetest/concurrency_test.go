package kubetest_test

import (
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// The lock by resourceVersion is what makes read, change and write safe among many clients: no increment is lost.
func TestConcurrentUpdates(t *testing.T) {
	t.Parallel()
	const clients, each = 8, 25
	cluster := kubetest.New(volume("pv"))
	var group sync.WaitGroup
	for range clients {
		group.Go(func() {
			client := cluster.Client().PersistentVolumes()
			for done := 0; done < each; {
				pv, err := client.Get(t.Context(), "pv", metav1.GetOptions{})
				if err != nil {
					t.Errorf("get: %v", err)
					return
				}
				n, _ := strconv.Atoi(pv.Labels["n"]) // none yet: 0
				pv.Labels = map[string]string{"n": strconv.Itoa(n + 1)}
				switch _, err := client.Update(t.Context(), pv, metav1.UpdateOptions{}); {
				case err == nil:
					done++
				case !apierrors.IsConflict(err):
					t.Errorf("update: %v", err)
					return
				}
			}
		})
	}
	group.Wait()
	pv := must[*corev1.PersistentVolume](t)(cluster.Client().PersistentVolumes().Get(t.Context(), "pv", metav1.GetOptions{}))
	if want := strconv.Itoa(clients * each); pv.Labels["n"] != want {
		t.Errorf("counted to %s, want %s", pv.Labels["n"], want)
	}
}

// Of many clients that create one name, one succeeds; of many that delete it, one does.
func TestConcurrentCreationAndDeletion(t *testing.T) {
	t.Parallel()
	const clients = 16
	cluster := kubetest.New()
	client := cluster.Client().PersistentVolumes()
	race := func(do func() error, others func(error) bool) (won int) {
		var mu sync.Mutex
		var group sync.WaitGroup
		for range clients {
			group.Go(func() {
				err := do()
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					won++
				case !others(err):
					t.Errorf("unexpected: %v", err)
				}
			})
		}
		group.Wait()
		return won
	}
	if won := race(func() error {
		_, err := client.Create(t.Context(), volume("pv"), metav1.CreateOptions{})
		return err
	}, apierrors.IsAlreadyExists); won != 1 {
		t.Errorf("%d clients have created it", won)
	}
	if won := race(func() error { return client.Delete(t.Context(), "pv", metav1.DeleteOptions{}) }, apierrors.IsNotFound); won != 1 {
		t.Errorf("%d clients have deleted it", won)
	}
	if writes := cluster.Writes(); len(writes) != 2*clients {
		t.Errorf("%d writes are recorded, want %d", len(writes), 2*clients)
	}
}

// All watchers see all changes in one order, that of the versions, whoever writes.
func TestWatchersSeeOneOrder(t *testing.T) {
	t.Parallel()
	const writers, each, watchers = 4, 20, 3
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New()
		streams := make([]watch.Interface, 0, watchers)
		for range watchers {
			w := must[watch.Interface](t)(cluster.Client().PersistentVolumes().Watch(t.Context(), metav1.ListOptions{}))
			defer w.Stop()
			streams = append(streams, w)
		}
		var group sync.WaitGroup
		for i := range writers {
			group.Go(func() {
				client := cluster.Client().PersistentVolumes()
				name := fmt.Sprint("pv-", i)
				if _, err := client.Create(t.Context(), volume(name), metav1.CreateOptions{}); err != nil {
					t.Error(err)
				}
				for j := range each - 1 {
					patch := fmt.Sprintf(`{"metadata":{"labels":{"n":"%d"}}}`, j)
					if _, err := client.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		group.Wait()
		for i, w := range streams {
			for want := 2; want <= writers*each+1; want++ { // the empty cluster is at version 1
				event := <-w.ResultChan()
				if obj, ok := event.Object.(metav1.Object); !ok || obj.GetResourceVersion() != strconv.Itoa(want) {
					t.Fatalf("watcher %d: got %s %+v, want version %d", i, event.Type, event.Object, want)
				}
			}
		}
	})
}
