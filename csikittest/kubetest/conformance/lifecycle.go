package conformance

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// deletion checks which finalizers an object may lose and gain while it is being deleted.
func deletion(t *testing.T, s Server) {
	const noNew = "422 Invalid named metadata.finalizers:FieldValueForbidden"
	cases := map[string]struct {
		kind  types.PatchType
		patch string
		want  string
		left  []string
	}{
		"AddStrategic":  {kind: types.StrategicMergePatchType, patch: `{"metadata":{"finalizers":["e.x/c"]}}`, want: noNew, left: []string{"e.x/a", "e.x/b"}},
		"AddMerge":      {kind: types.MergePatchType, patch: `{"metadata":{"finalizers":["e.x/a","e.x/b","e.x/c"]}}`, want: noNew, left: []string{"e.x/a", "e.x/b"}},
		"Exchange":      {kind: types.MergePatchType, patch: `{"metadata":{"finalizers":["e.x/c"]}}`, want: noNew, left: []string{"e.x/a", "e.x/b"}},
		"KnownAgain":    {kind: types.StrategicMergePatchType, patch: `{"metadata":{"finalizers":["e.x/a"]}}`, want: "ok", left: []string{"e.x/a", "e.x/b"}},
		"RemoveOne":     {kind: types.StrategicMergePatchType, patch: `{"metadata":{"$deleteFromPrimitiveList/finalizers":["e.x/a"]}}`, want: "ok", left: []string{"e.x/b"}},
		"Annotate":      {kind: types.MergePatchType, patch: `{"metadata":{"annotations":{"a":"1"}}}`, want: "ok", left: []string{"e.x/a", "e.x/b"}},
		"Undelete":      {kind: types.MergePatchType, patch: `{"metadata":{"deletionTimestamp":null}}`, want: "ok", left: []string{"e.x/a", "e.x/b"}},
		"ShorterGrace":  {kind: types.MergePatchType, patch: `{"metadata":{"deletionGracePeriodSeconds":null}}`, want: "ok", left: []string{"e.x/a", "e.x/b"}},
		"OtherUIDAdded": {kind: types.MergePatchType, patch: `{"metadata":{"uid":"other","finalizers":["e.x/c"]}}`, want: noNew + " metadata.uid:FieldValueInvalid", left: []string{"e.x/a", "e.x/b"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			client := s.Client.VolumeAttachments()
			va := newAttachment(t, s, "e.x/a", "e.x/b")
			if err := client.Delete(t.Context(), va.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			_, err := client.Patch(t.Context(), va.Name, tc.kind, []byte(tc.patch), metav1.PatchOptions{})
			if got := answer(err); got != tc.want {
				t.Errorf("got %q, want %q (%v)", got, tc.want, err)
			}
			after := must[*storagev1.VolumeAttachment](t)(client.Get(t.Context(), va.Name, metav1.GetOptions{}))
			if d := cmp.Diff(tc.left, after.Finalizers); d != "" || after.DeletionTimestamp == nil {
				t.Errorf("deleted at %v, finalizers (-want +got):\n%s", after.DeletionTimestamp, d)
			}
		})
	}
}

// lastFinalizer checks that the removal of the last finalizer removes an object that is being deleted, by every verb. The answer has
// the version that the object had before.
func lastFinalizer(t *testing.T, s Server) {
	client := s.Client.Nodes()
	patch := func(kind types.PatchType, patch string) func(*testing.T, *corev1.Node) (*corev1.Node, error) {
		return func(t *testing.T, node *corev1.Node) (*corev1.Node, error) {
			t.Helper()
			return client.Patch(t.Context(), node.Name, kind, []byte(patch), metav1.PatchOptions{})
		}
	}
	verbs := map[string]func(*testing.T, *corev1.Node) (*corev1.Node, error){
		"Update": func(t *testing.T, node *corev1.Node) (*corev1.Node, error) {
			t.Helper()
			node.Finalizers = nil
			return client.Update(t.Context(), node, metav1.UpdateOptions{})
		},
		"UpdateStatus": func(t *testing.T, node *corev1.Node) (*corev1.Node, error) {
			t.Helper()
			node.Finalizers = nil
			return client.UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
		},
		"Merge":     patch(types.MergePatchType, `{"metadata":{"finalizers":null}}`),
		"Strategic": patch(types.StrategicMergePatchType, `{"metadata":{"$deleteFromPrimitiveList/finalizers":["e.x/x","e.x/y","e.x/z"]}}`),
		"JSON":      patch(types.JSONPatchType, `[{"op":"remove","path":"/metadata/finalizers"}]`),
	}
	for verb, remove := range verbs {
		for state, deleted := range map[string]bool{"Alive": false, "Deleted": true} {
			t.Run(verb+state, func(t *testing.T) {
				node := newNode(t, s)
				want := "ok"
				if deleted {
					want = "404 NotFound named"
					if err := client.Delete(t.Context(), node.Name, metav1.DeleteOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				before := must[*corev1.Node](t)(client.Get(t.Context(), node.Name, metav1.GetOptions{}))
				last := must[*corev1.Node](t)(remove(t, before.DeepCopy()))
				if same := last.ResourceVersion == before.ResourceVersion; same != deleted || len(last.Finalizers) > 0 {
					t.Errorf("answer to the removal: version %s with finalizers %q, version before %s", last.ResourceVersion, last.Finalizers, before.ResourceVersion)
				}
				_, err := client.Get(t.Context(), node.Name, metav1.GetOptions{})
				if got := answer(err); got != want {
					t.Errorf("afterwards: got %q, want %q", got, want)
				}
			})
		}
	}
}

// status checks which part of the metadata a write of the status changes: that of most kinds, but not of attachments.
func status(t *testing.T, s Server) {
	patch := []byte(`{"metadata":{"labels":{"l":"1"},"annotations":{"a":"1"},"finalizers":["e.x/f"]}}`)
	t.Run("Node", func(t *testing.T) {
		client := s.Client.Nodes()
		name := newNode(t, s).Name
		node := must[*corev1.Node](t)(client.Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}, "status"))
		if node.Labels["l"] != "1" || node.Annotations["a"] != "1" || len(node.Finalizers) != 1 {
			t.Errorf("metadata must be written, got %+v", node.ObjectMeta)
		}
	})
	t.Run("Attachment", func(t *testing.T) {
		client := s.Client.VolumeAttachments()
		va := newAttachment(t, s)
		va = must[*storagev1.VolumeAttachment](t)(client.Patch(t.Context(), va.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status"))
		if va.Labels != nil || va.Annotations != nil || va.Finalizers != nil {
			t.Errorf("metadata must stay, got %+v", va.ObjectMeta)
		}
	})
	t.Run("SecretHasNone", func(t *testing.T) {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: nameOf(t)}}
		client := s.Client.Secrets(s.Namespace)
		must[*corev1.Secret](t)(client.Create(t.Context(), secret, metav1.CreateOptions{}))
		_, err := client.UpdateStatus(t.Context(), secret, metav1.UpdateOptions{})
		if got := answer(err); got != "404 NotFound" {
			t.Errorf("got %q (%v)", got, err)
		}
	})
}

// creation checks the fields of a new object, and the answers to objects that cannot be created.
func creation(t *testing.T, s Server) {
	client := s.Client.VolumeAttachments()
	cases := map[string]struct {
		reason string
		change func(*storagev1.VolumeAttachment)
		want   string
	}{
		"Plain":     {reason: "nothing special", change: func(*storagev1.VolumeAttachment) {}, want: "ok"},
		"OwnUID":    {reason: "the server makes the UID", change: func(va *storagev1.VolumeAttachment) { va.UID = "mine" }, want: "ok"},
		"Status":    {reason: "the status is dropped", change: func(va *storagev1.VolumeAttachment) { va.Status.Attached = true }, want: "ok"},
		"Deleted":   {reason: "no object is born dying", change: func(va *storagev1.VolumeAttachment) { va.DeletionTimestamp = ptr.To(metav1.Now()) }, want: "ok"},
		"Grace":     {reason: "no object is born dying", change: func(va *storagev1.VolumeAttachment) { va.DeletionGracePeriodSeconds = ptr.To(int64(7)) }, want: "ok"},
		"Version":   {reason: "a new object has no version", change: func(va *storagev1.VolumeAttachment) { va.ResourceVersion = "1" }, want: "500  without details"},
		"NoName":    {reason: "a name is needed", change: func(va *storagev1.VolumeAttachment) { va.Name = "" }, want: "422 Invalid metadata.name:FieldValueRequired"},
		"BadLabel":  {reason: "labels have rules", change: func(va *storagev1.VolumeAttachment) { va.Labels = map[string]string{"a": "not a value"} }, want: "422 Invalid named metadata.labels:FieldValueInvalid"},
		"Generated": {reason: "a name is made", change: func(va *storagev1.VolumeAttachment) { va.GenerateName, va.Name = va.Name+"-", "" }, want: "ok"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			va := attachment(nameOf(t))
			tc.change(va)
			got, err := client.Create(t.Context(), va, metav1.CreateOptions{})
			if a := answer(err); a != tc.want {
				t.Fatalf("%s: got %q, want %q (%v)", tc.reason, a, tc.want, err)
			}
			if err == nil {
				created(t, s, got)
			}
		})
	}
}

// created checks the fields that the server sets in a new object.
func created(t *testing.T, s Server, got *storagev1.VolumeAttachment) {
	t.Helper()
	if got.UID == "" || got.UID == "mine" || got.CreationTimestamp.IsZero() || got.Status.Attached || got.DeletionTimestamp != nil || got.DeletionGracePeriodSeconds != nil {
		t.Errorf("got %+v", got)
	}
	if len(got.Name) != len(nameOf(t)) && len(got.Name) != len(nameOf(t))+6 {
		t.Errorf("five characters follow a generated name, got %q", got.Name)
	}
	_, err := s.Client.VolumeAttachments().Create(t.Context(), attachment(got.Name), metav1.CreateOptions{})
	if a := answer(err); a != "409 AlreadyExists named" {
		t.Errorf("the same name again: got %q", a)
	}
}
