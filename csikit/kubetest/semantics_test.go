package kubetest_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/kubetest"
)

// node is one with everything that patches of lists are about.
func node() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"a": "1", "b": "2"}, Finalizers: []string{"x", "y", "z"}},
		Spec: corev1.NodeSpec{
			PodCIDRs: []string{"10.0.0.0/24", "fd00::/64"},
			Taints:   []corev1.Taint{{Key: "t1", Effect: corev1.TaintEffectNoSchedule}, {Key: "t2", Effect: corev1.TaintEffectNoExecute}},
		},
		Status: corev1.NodeStatus{
			Conditions:      []corev1.NodeCondition{{Type: "Ready", Status: "False"}, {Type: "DiskPressure", Status: "False"}},
			VolumesAttached: []corev1.AttachedVolume{{Name: "v1", DevicePath: "/dev/a"}},
		},
	}
}

// leaf returns a field of an object by its JSON path, as JSON.
func leaf(t *testing.T, obj any, path ...string) string {
	t.Helper()
	data, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	var value any
	if err := json.Unmarshal(data, &value); err != nil {
		t.Fatal(err)
	}
	for _, key := range path {
		fields, _ := value.(map[string]any)
		value = fields[key]
	}
	if data, err = json.Marshal(value); err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// What the three kinds of patches do to maps and to lists with and without merge keys.
func TestPatchSemantics(t *testing.T) {
	t.Parallel()
	const strategic, merge, operations = types.StrategicMergePatchType, types.MergePatchType, types.JSONPatchType
	finalizers, labels := []string{"metadata", "finalizers"}, []string{"metadata", "labels"}
	cases := map[string]struct {
		reason string
		kind   types.PatchType
		patch  string
		path   []string
		want   string
		status bool // by way of the status subresource
	}{
		"StrategicAdds": {
			reason: "A list of primitives with merge strategy takes new elements.", kind: strategic,
			patch: `{"metadata":{"finalizers":["w"]}}`, path: finalizers, want: `["w","x","y","z"]`,
		},
		"StrategicKnown": {
			reason: "An element that is there is not there twice.", kind: strategic,
			patch: `{"metadata":{"finalizers":["y"]}}`, path: finalizers, want: `["x","y","z"]`,
		},
		"StrategicDeletesPrimitives": {
			reason: "Elements of such lists go by a directive.", kind: strategic,
			patch: `{"metadata":{"$deleteFromPrimitiveList/finalizers":["x","z","none"]}}`, path: finalizers, want: `["y"]`,
		},
		"StrategicDeletesAndAdds": {
			reason: "Both at once is how a finalizer is exchanged.", kind: strategic,
			patch: `{"metadata":{"$deleteFromPrimitiveList/finalizers":["x","y","z"],"finalizers":["w"]}}`, path: finalizers, want: `["w"]`,
		},
		"StrategicOrder": {
			reason: "The order of a list may be told.", kind: strategic,
			patch: `{"metadata":{"$setElementOrder/finalizers":["z","y","x"],"finalizers":["x"]}}`, path: finalizers, want: `["z","y","x"]`,
		},
		"StrategicMap": {
			reason: "Keys of maps are merged, null removes one.", kind: strategic,
			patch: `{"metadata":{"labels":{"a":null,"c":"3"}}}`, path: labels, want: `{"b":"2","c":"3"}`,
		},
		"StrategicReplacesMap": {
			reason: "A map can be replaced as a whole.", kind: strategic,
			patch: `{"metadata":{"labels":{"$patch":"replace","c":"3"}}}`, path: labels, want: `{"c":"3"}`,
		},
		"StrategicMergesByKey": {
			reason: "Lists of objects are merged by their key.", kind: strategic, status: true,
			patch: `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, path: []string{"status", "conditions"},
			want: `[{"lastHeartbeatTime":null,"lastTransitionTime":null,"status":"True","type":"Ready"},` +
				`{"lastHeartbeatTime":null,"lastTransitionTime":null,"status":"False","type":"DiskPressure"}]`,
		},
		"StrategicDeletesByKey": {
			reason: "An element goes by its key.", kind: strategic, status: true,
			patch: `{"status":{"conditions":[{"$patch":"delete","type":"Ready"}]}}`, path: []string{"status", "conditions"},
			want: `[{"lastHeartbeatTime":null,"lastTransitionTime":null,"status":"False","type":"DiskPressure"}]`,
		},
		"StrategicReplacesList": {
			reason: "A list with keys can be replaced as a whole.", kind: strategic, status: true,
			patch: `{"status":{"conditions":[{"$patch":"replace"},{"type":"New","status":"True"}]}}`, path: []string{"status", "conditions"},
			want: `[{"lastHeartbeatTime":null,"lastTransitionTime":null,"status":"True","type":"New"}]`,
		},
		"StrategicAtomicList": {
			reason: "A list without merge strategy is replaced.", kind: strategic,
			patch: `{"spec":{"taints":[{"key":"t3","effect":"NoSchedule"}]}}`, path: []string{"spec", "taints"},
			want: `[{"effect":"NoSchedule","key":"t3"}]`,
		},
		"StrategicAtomicStatus": {
			reason: "So is volumesAttached, which the attach/detach controller writes.", kind: strategic, status: true,
			patch: `{"status":{"volumesAttached":[{"name":"v2","devicePath":""}]}}`, path: []string{"status", "volumesAttached"},
			want: `[{"devicePath":"","name":"v2"}]`,
		},
		"StrategicDeletesField": {
			reason: "null removes a list.", kind: strategic, patch: `{"metadata":{"finalizers":null}}`, path: finalizers, want: `null`,
		},
		"MergeReplacesList": {
			reason: "Merge patches know no lists.", kind: merge, patch: `{"metadata":{"finalizers":["w"]}}`, path: finalizers, want: `["w"]`,
		},
		"MergeTakesDirectivesForFields": {
			reason: "Directives are strategic; elsewhere they are unknown fields, and dropped.", kind: merge,
			patch: `{"metadata":{"$deleteFromPrimitiveList/finalizers":["x"]}}`, path: finalizers, want: `["x","y","z"]`,
		},
		"MergeRemovesKey": {
			reason: "null removes a key.", kind: merge, patch: `{"metadata":{"labels":{"a":null}}}`, path: labels, want: `{"b":"2"}`,
		},
		"MergeRemovesMap": {
			reason: "null removes the map.", kind: merge, patch: `{"metadata":{"labels":null}}`, path: labels, want: `null`,
		},
		"JSONInserts": {
			reason: "Operations know places in lists.", kind: operations,
			patch: `[{"op":"add","path":"/metadata/finalizers/1","value":"w"}]`, path: finalizers, want: `["x","w","y","z"]`,
		},
		"JSONRemoves": {
			reason: "And take from them, one after the other.", kind: operations,
			patch: `[{"op":"remove","path":"/metadata/finalizers/0"},{"op":"remove","path":"/metadata/finalizers/0"}]`, path: finalizers, want: `["z"]`,
		},
		"JSONTestHolds": {
			reason: "A test that holds lets the rest happen.", kind: operations,
			patch: `[{"op":"test","path":"/metadata/labels/a","value":"1"},{"op":"replace","path":"/metadata/labels/a","value":"9"}]`,
			path:  labels, want: `{"a":"9","b":"2"}`,
		},
		"JSONMoves": {
			reason: "Values can be moved.", kind: operations,
			patch: `[{"op":"move","from":"/metadata/labels/a","path":"/metadata/labels/c"}]`, path: labels, want: `{"b":"2","c":"1"}`,
		},
		"JSONEscapes": {
			reason: "A slash in a key is ~1.", kind: operations,
			patch: `[{"op":"add","path":"/metadata/labels/example.com~1c","value":"3"}]`, path: labels, want: `{"a":"1","b":"2","example.com/c":"3"}`,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := kubetest.New(node())
			var subresources []string
			if tc.status {
				subresources = []string{"status"}
			}
			got, err := cluster.Client().Nodes().Patch(t.Context(), "n", tc.kind, []byte(tc.patch), metav1.PatchOptions{}, subresources...)
			if err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			if d := cmp.Diff(tc.want, leaf(t, got, tc.path...)); d != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, d)
			}
			stored := must[*corev1.Node](t)(cluster.Client().Nodes().Get(t.Context(), "n", metav1.GetOptions{}))
			if d := cmp.Diff(got, stored); d != "" {
				t.Errorf("the answer is what is stored (-answer +stored):\n%s", d)
			}
		})
	}
}

// What a client cannot change, whatever it sends and by whichever verb.
func TestFieldsOfTheServer(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		patch  string
		status bool
	}{
		"CreationTimestamp": {reason: "An object is as old as it is.", patch: `{"metadata":{"creationTimestamp":"2001-01-01T00:00:00Z"}}`},
		"DeletionTimestamp": {reason: "Only a deletion deletes.", patch: `{"metadata":{"deletionTimestamp":"2001-01-01T00:00:00Z"}}`},
		"Grace":             {reason: "Only a deletion has a grace period.", patch: `{"metadata":{"deletionGracePeriodSeconds":7}}`},
		"StatusByMain":      {reason: "The status has an own way.", patch: `{"status":{"nodeInfo":{"kernelVersion":"9"}}}`},
		"SpecByStatus":      {reason: "The status way is for the status.", patch: `{"spec":{"unschedulable":true}}`, status: true},
		"UnknownField":      {reason: "Fields that the kind does not have are dropped.", patch: `{"spec":{"colour":"red"}}`},
		"Empty":             {reason: "Nothing is nothing.", patch: `{}`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := kubetest.New(node())
			client := cluster.Client().Nodes()
			before := must[*corev1.Node](t)(client.Get(t.Context(), "n", metav1.GetOptions{}))
			var subresources []string
			if tc.status {
				subresources = []string{"status"}
			}
			after := must[*corev1.Node](t)(client.Patch(t.Context(), "n", types.MergePatchType, []byte(tc.patch), metav1.PatchOptions{}, subresources...))
			if d := cmp.Diff(before, after); d != "" {
				t.Errorf("%s Nothing changes, not even the resourceVersion (-before +after):\n%s", tc.reason, d)
			}
			if writes := cluster.Writes(); len(writes) != 1 || !writes[0].Unchanged {
				t.Errorf("%s The write is known to be superfluous, got %+v", tc.reason, writes)
			}
		})
	}
}

// Labels, annotations and finalizers travel with the status of most kinds, but not with that of attachments.
func TestMetadataByWayOfTheStatus(t *testing.T) {
	t.Parallel()
	patch := []byte(`{"metadata":{"labels":{"l":"1"},"annotations":{"a":"1"},"finalizers":["f"]}}`)
	t.Run("Volume", func(t *testing.T) {
		t.Parallel()
		client := kubetest.New(volume("pv")).Client().PersistentVolumes()
		pv := must[*corev1.PersistentVolume](t)(client.Patch(t.Context(), "pv", types.MergePatchType, patch, metav1.PatchOptions{}, "status"))
		if pv.Labels["l"] != "1" || pv.Annotations["a"] != "1" || len(pv.Finalizers) != 1 {
			t.Errorf("metadata are written, got %+v", pv.ObjectMeta)
		}
	})
	t.Run("Attachment", func(t *testing.T) {
		t.Parallel()
		client := kubetest.New(attachment("va")).Client().VolumeAttachments()
		va := must[*storagev1.VolumeAttachment](t)(client.Patch(t.Context(), "va", types.MergePatchType, patch, metav1.PatchOptions{}, "status"))
		if va.Labels != nil || va.Annotations != nil || va.Finalizers != nil {
			t.Errorf("metadata are left alone, got %+v", va.ObjectMeta)
		}
	})
}

// Finalizers of an object that is being deleted: the last one takes the object along, by whichever verb it goes.
func TestLastFinalizerByEveryVerb(t *testing.T) {
	t.Parallel()
	verbs := map[string]func(*testing.T, *kubetest.Cluster) error{
		"Update": func(t *testing.T, c *kubetest.Cluster) error {
			t.Helper()
			pv := must[*corev1.PersistentVolume](t)(c.Client().PersistentVolumes().Get(t.Context(), "pv", metav1.GetOptions{}))
			pv.Finalizers = nil
			_, err := c.Client().PersistentVolumes().Update(t.Context(), pv, metav1.UpdateOptions{})
			return err
		},
		"UpdateStatus": func(t *testing.T, c *kubetest.Cluster) error {
			t.Helper()
			pv := must[*corev1.PersistentVolume](t)(c.Client().PersistentVolumes().Get(t.Context(), "pv", metav1.GetOptions{}))
			pv.Finalizers = nil
			_, err := c.Client().PersistentVolumes().UpdateStatus(t.Context(), pv, metav1.UpdateOptions{})
			return err
		},
		"Merge":     patchVolume(types.MergePatchType, `{"metadata":{"finalizers":null}}`),
		"Strategic": patchVolume(types.StrategicMergePatchType, `{"metadata":{"$deleteFromPrimitiveList/finalizers":["f"]}}`),
		"JSON":      patchVolume(types.JSONPatchType, `[{"op":"remove","path":"/metadata/finalizers/0"}]`),
		"ByHand": func(_ *testing.T, c *kubetest.Cluster) error {
			return c.Merge("persistentvolumes", "", "pv", []byte(`{"metadata":{"finalizers":null}}`))
		},
	}
	for name, verb := range verbs {
		for state, deleted := range map[string]bool{"Alive": false, "Deleted": true} {
			t.Run(name+state, func(t *testing.T) {
				t.Parallel()
				cluster := kubetest.New(volume("pv", "f"))
				if deleted {
					if err := cluster.Remove("persistentvolumes", "", "pv"); err != nil {
						t.Fatal(err)
					}
				}
				if err := verb(t, cluster); err != nil {
					t.Fatal(err)
				}
				if left := len(cluster.Objects("persistentvolumes")); (left == 0) != deleted {
					t.Errorf("%d objects are left", left)
				}
				for _, w := range cluster.Writes() {
					if w.Gone != deleted {
						t.Errorf("the record says gone=%t", w.Gone)
					}
				}
			})
		}
	}
}

func patchVolume(kind types.PatchType, patch string) func(*testing.T, *kubetest.Cluster) error {
	return func(t *testing.T, c *kubetest.Cluster) error {
		t.Helper()
		_, err := c.Client().PersistentVolumes().Patch(t.Context(), "pv", kind, []byte(patch), metav1.PatchOptions{})
		return err
	}
}

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
