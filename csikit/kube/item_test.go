package kube

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// send has an informer that does not run process an object as its queue does.
func send[T Object](i *Informer[T], as cache.DeltaType, obj T) {
	it, _ := i.encode(obj)
	_ = i.process(cache.Deltas{{Type: as, Object: it}}, false)
}

// An object takes the memory of what is kept of it, not that of all fields of its kind.
func TestMemoryOfAnObject(t *testing.T) {
	const objects, most = 10_000, 700
	before := reachable()
	i := NewInformer[*corev1.PersistentVolume, *corev1.PersistentVolumeList](nil, InformerOptions[*corev1.PersistentVolume]{
		Index: map[string]func(*corev1.PersistentVolume) []string{"name": func(pv *corev1.PersistentVolume) []string { return []string{pv.Name} }},
	})
	for n := range objects {
		uid := types.UID(fmt.Sprintf("%036d", n))
		send(i, cache.Added, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + string(uid), UID: uid, ResourceVersion: "1"}})
	}
	per := (reachable() - before) / objects
	t.Logf("%d bytes per object", per)
	if per > most {
		t.Errorf("%d bytes per object, want at most %d", per, most)
	}
	if n := len(i.store.ListKeys()); n != objects {
		t.Errorf("%d objects, want %d", n, objects)
	}
}

// reachable returns the bytes that are in use.
func reachable() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// TestObjectsAreCopies changes what was decoded, strings and bytes of which might share memory with what is kept.
func TestObjectsAreCopies(t *testing.T) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "keys"}, Data: map[string][]byte{"key": []byte("value")}}
	it := newItem(secret.DeepCopy(), nil)
	copy(it.object(nil).Data["key"], "wrong")
	if diff := cmp.Diff(secret, it.object(nil)); diff != "" {
		t.Errorf("a change of one copy is in the next (-want +got):\n%s", diff)
	}
}
