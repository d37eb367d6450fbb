package kube

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

func node(name, version string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}}
}

// nodes is an informer that nothing listens to and that does not run.
func nodes(names ...string) *Informer[*corev1.Node] {
	i := NewInformer[*corev1.Node, *corev1.NodeList](nil, InformerOptions[*corev1.Node]{})
	for _, name := range names {
		send(i, cache.Added, node(name, "1"))
	}
	return i
}

func TestRecentObjects(t *testing.T) {
	t.Parallel()
	i := nodes("a", "b")
	read := func(name string) *corev1.Node {
		t.Helper()
		obj, ok := i.Get("", name)
		if !ok {
			t.Fatalf("%s is not there", name)
		}
		return obj
	}
	first := read("a")
	if read("a") != first {
		t.Error("an object that was read a moment ago is decoded again")
	}
	send(i, cache.Updated, node("a", "2"))
	first = read("a")
	if first.ResourceVersion != "2" {
		t.Errorf("an object that was replaced: version %s, want 2", first.ResourceVersion)
	}
	for n := range 2 * recentObjects {
		send(i, cache.Added, node(fmt.Sprint("other-", n), "1"))
	}
	if read("a") == first {
		t.Error("an object is kept decoded although many have changed since")
	}
	if n := len(i.recent.objs); n != recentObjects {
		t.Errorf("%d objects are kept decoded, want %d", n, recentObjects)
	}
	send(i, cache.Deleted, node("a", "3"))
	if _, ok := i.Get("", "a"); ok {
		t.Error("an object that was deleted is there")
	}
	send(i, cache.Added, node("a", "4"))
	if got := read("a").ResourceVersion; got != "4" {
		t.Errorf("an object that is there again has version %s, want 4", got)
	}
}

// With KUBE_CACHE_MUTATION_DETECTOR, under which the tests of all components run, a reader that writes is found.
func TestMutationDetector(t *testing.T) {
	t.Parallel()
	it := newItem(node("a", "1"), nil)
	obj := it.object(nil)
	check(it, obj, nil) // does not panic
	obj.Labels = map[string]string{"a": "reader's"}
	defer func() {
		if recover() == nil {
			t.Error("nothing noticed that an object was modified")
		}
	}()
	check(it, obj, nil)
}
