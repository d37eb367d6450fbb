package kubetest_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// Every write gets a version of its own, larger than all before, over all kinds.
func TestVersionsGrow(t *testing.T) {
	t.Parallel()
	cluster := kubetest.New()
	var last uint64
	next := func(what string, obj metav1.Object) {
		t.Helper()
		version, err := strconv.ParseUint(obj.GetResourceVersion(), 10, 64)
		if err != nil || version <= last {
			t.Errorf("%s: version %q after %d (%v)", what, obj.GetResourceVersion(), last, err)
		}
		last = version
	}
	for i := range 3 {
		pv := must[*corev1.PersistentVolume](t)(cluster.Client().PersistentVolumes().Create(t.Context(), volume(fmt.Sprint("pv-", i), "f"), metav1.CreateOptions{}))
		next("create", pv)
		pvc := must[*corev1.PersistentVolumeClaim](t)(cluster.Client().PersistentVolumeClaims("ns").Create(t.Context(), claim(fmt.Sprint("c-", i)), metav1.CreateOptions{}))
		next("create another kind", pvc)
		pv.Labels = map[string]string{"a": "b"}
		pv = must[*corev1.PersistentVolume](t)(cluster.Client().PersistentVolumes().Update(t.Context(), pv, metav1.UpdateOptions{}))
		next("update", pv)
		if err := cluster.Client().PersistentVolumes().Delete(t.Context(), pv.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		pv = must[*corev1.PersistentVolume](t)(cluster.Client().PersistentVolumes().Get(t.Context(), pv.Name, metav1.GetOptions{}))
		next("mark", pv)
	}
	list := must[*corev1.PersistentVolumeList](t)(cluster.Client().PersistentVolumes().List(t.Context(), metav1.ListOptions{}))
	if list.ResourceVersion != strconv.FormatUint(last, 10) {
		t.Errorf("a list has the version of the last write, %d, got %s", last, list.ResourceVersion)
	}
}

// An object that is made again under its name is another object.
func TestNameIsUsedAgain(t *testing.T) {
	t.Parallel()
	cluster := kubetest.New(volume("pv"))
	client := cluster.Client().PersistentVolumes()
	first := must[*corev1.PersistentVolume](t)(client.Get(t.Context(), "pv", metav1.GetOptions{}))
	if err := client.Delete(t.Context(), "pv", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	second := must[*corev1.PersistentVolume](t)(client.Create(t.Context(), volume("pv"), metav1.CreateOptions{}))
	if first.UID == second.UID {
		t.Errorf("both have the UID %q", first.UID)
	}
	first.Labels = map[string]string{"late": "write"}
	if _, err := client.Update(t.Context(), first, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("an update that was meant for the first: got %v, want a conflict", err)
	}
	first.ResourceVersion = "" // unconditional, but for the UID
	if _, err := client.Update(t.Context(), first, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("a forced update that was meant for the first: got %v, want a conflict", err)
	}
	if err := client.Delete(t.Context(), "pv", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &first.UID}}); !apierrors.IsConflict(err) {
		t.Errorf("a deletion that was meant for the first: got %v, want a conflict", err)
	}
	if _, err := client.Create(t.Context(), volume("pv"), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("a third of that name: got %v", err)
	}
}

// Two clients that read the same and write different things: one wins, the other learns of it, nothing is lost.
func TestOptimisticLock(t *testing.T) {
	t.Parallel()
	cluster := kubetest.New(volume("pv"))
	client := cluster.Client().PersistentVolumes()
	one := must[*corev1.PersistentVolume](t)(client.Get(t.Context(), "pv", metav1.GetOptions{}))
	two := one.DeepCopy()
	one.Labels = map[string]string{"one": "1"}
	two.Labels = map[string]string{"two": "2"}
	must[*corev1.PersistentVolume](t)(client.Update(t.Context(), one, metav1.UpdateOptions{}))
	for name, write := range map[string]func() error{
		"Update":       func() error { _, err := client.Update(t.Context(), two, metav1.UpdateOptions{}); return err },
		"UpdateStatus": func() error { _, err := client.UpdateStatus(t.Context(), two, metav1.UpdateOptions{}); return err },
		"Patch": func() error {
			patch := fmt.Sprintf(`{"metadata":{"resourceVersion":%q,"labels":{"two":"2"}}}`, two.ResourceVersion)
			_, err := client.Patch(t.Context(), "pv", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			return err
		},
		"Delete": func() error {
			return client.Delete(t.Context(), "pv", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &two.ResourceVersion}})
		},
	} {
		if err := write(); !apierrors.IsConflict(err) {
			t.Errorf("%s of what is out of date: got %v, want a conflict", name, err)
		}
	}
	got := must[*corev1.PersistentVolume](t)(client.Get(t.Context(), "pv", metav1.GetOptions{}))
	if d := cmp.Diff(map[string]string{"one": "1"}, got.Labels); d != "" {
		t.Errorf("labels (-want +got):\n%s", d)
	}
	for _, w := range cluster.Writes()[1:] {
		if !apierrors.IsConflict(w.Err) || w.Object != nil || w.Before == nil {
			t.Errorf("the record of a lost write has its error and what stood against it, got %+v", w)
		}
	}
}

// generateName: a name per request, not in use, and no name at all is an error.
func TestGenerateName(t *testing.T) {
	t.Parallel()
	cluster := kubetest.New()
	client := cluster.Client().Secrets("ns")
	seen := map[string]bool{}
	for range 20 {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{GenerateName: "token-"}}
		got := must[*corev1.Secret](t)(client.Create(t.Context(), secret, metav1.CreateOptions{}))
		if len(got.Name) != len("token-")+5 || seen[got.Name] {
			t.Errorf("name %q: five characters follow, as on a real server, and it is new", got.Name)
		}
		if secret.Name != "" {
			t.Errorf("the caller's object was changed to %q", secret.Name)
		}
		seen[got.Name] = true
	}
	named := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "mine", GenerateName: "token-"}}
	if got := must[*corev1.Secret](t)(client.Create(t.Context(), named, metav1.CreateOptions{})); got.Name != "mine" {
		t.Errorf("a name is kept, got %q", got.Name)
	}
}

// Namespaces keep apart what has the same name.
func TestNamespaces(t *testing.T) {
	t.Parallel()
	cluster := kubetest.New()
	for _, ns := range []string{"a", "b"} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Data: map[string][]byte{"in": []byte(ns)}}
		must[*corev1.Secret](t)(cluster.Client().Secrets(ns).Create(t.Context(), secret, metav1.CreateOptions{}))
	}
	got := must[*corev1.Secret](t)(cluster.Client().Secrets("b").Get(t.Context(), "s", metav1.GetOptions{}))
	if string(got.Data["in"]) != "b" {
		t.Errorf("got that of namespace %q", got.Data["in"])
	}
	if err := cluster.Client().Secrets("a").Delete(t.Context(), "s", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.Client().Secrets("c").Get(t.Context(), "s", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("another namespace: %v", err)
	}
	all := must[*corev1.SecretList](t)(cluster.Client().Secrets("").List(t.Context(), metav1.ListOptions{}))
	if len(all.Items) != 1 || all.Items[0].Namespace != "b" {
		t.Errorf("all namespaces: %+v", all.Items)
	}
}
