package kube

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// storeOf is a store that nothing listens to.
func storeOf(names ...string) *store[*corev1.Node] {
	s := newStore(InformerOptions[*corev1.Node]{}, func(_, _ *corev1.Node) {}, func(string) {})
	for _, name := range names {
		_ = s.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1"}})
	}
	return s
}

func TestRecentObjects(t *testing.T) {
	t.Parallel()
	s := storeOf("a", "b")
	read := func(name string) *corev1.Node {
		t.Helper()
		obj, ok := s.get(name)
		if !ok {
			t.Fatalf("%s is not there", name)
		}
		return obj
	}
	first := read("a")
	if read("a") != first {
		t.Error("an object that was read a moment ago is decoded again")
	}
	changed := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "2"}}
	if err := s.Update(changed); err != nil || read("a").ResourceVersion != "2" {
		t.Errorf("an object that was replaced: version %s, %v, want 2", read("a").ResourceVersion, err)
	}
	first = read("a")
	for i := range 2 * recentObjects {
		_ = s.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("other-", i)}})
	}
	if read("a") == first {
		t.Error("an object is kept decoded although many have changed since")
	}
	if n := len(s.recent.objs); n != recentObjects {
		t.Errorf("%d objects are kept decoded, want %d", n, recentObjects)
	}
	if err := s.Delete(changed); err != nil {
		t.Fatal(err)
	}
	if _, ok := s.get("a"); ok {
		t.Error("an object that was deleted is there")
	}
	if err := s.Add(changed); err != nil || read("a").ResourceVersion != "2" {
		t.Errorf("an object that is there again: %v, %v", read("a"), err)
	}
}

// With KUBE_CACHE_MUTATION_DETECTOR, under which the tests of all components run, a reader that writes is found.
func TestMutationDetector(t *testing.T) {
	t.Parallel()
	s := storeOf("a")
	obj, _ := s.get("a")
	it := item[*corev1.Node]{"a", s.items["a"]}
	check(it, obj, nil) // does not panic
	obj.Labels = map[string]string{"a": "reader's"}
	defer func() {
		if recover() == nil {
			t.Error("nobody noticed that an object was modified")
		}
	}()
	check(it, obj, nil)
}
