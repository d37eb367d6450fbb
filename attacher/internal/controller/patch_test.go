package controller

import (
	"net/http"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// TestPatches sends patches that were made for one state of an object to an API that
// has another.
func TestPatches(t *testing.T) {
	add, remove, annotate := withFinalizer(testFinalizer), withoutFinalizer(testFinalizer), withAnnotations
	finalizers := func(names ...string) func(*storagev1.VolumeAttachment) {
		return func(va *storagev1.VolumeAttachment) { va.Finalizers = names }
	}
	same := func(*storagev1.VolumeAttachment) {}

	tests := map[string]struct {
		reason      string
		read        func(*storagev1.VolumeAttachment)
		server      func(*storagev1.VolumeAttachment)
		ops         change
		stale       bool
		finalizers  []string
		annotations map[string]string
	}{
		"AddFirstFinalizer": {
			reason: "a list that does not exist is created",
			read:   same, server: same, ops: add,
			finalizers: []string{testFinalizer},
		},
		"AddToOthers": {
			reason: "finalizers of others stay",
			read:   finalizers("a/b"), server: finalizers("a/b"), ops: add,
			finalizers: []string{testFinalizer, "a/b"},
		},
		"AddToStaleList": {
			reason: "a finalizer that another client added meanwhile is kept, and causes no conflict",
			read:   same, server: finalizers("a/b"), ops: add,
			finalizers: []string{testFinalizer, "a/b"},
		},
		"RemoveLast": {
			reason: "the list goes with its last entry",
			read:   finalizers(testFinalizer), server: finalizers(testFinalizer), ops: remove,
		},
		"RemoveAmongOthers": {
			reason: "finalizers of others stay",
			read:   finalizers("a/b", testFinalizer, "c/d"), server: finalizers("a/b", testFinalizer, "c/d"), ops: remove,
			finalizers: []string{"a/b", "c/d"},
		},
		"RemoveFromStaleList": {
			reason: "a finalizer that another client added meanwhile is kept, and causes no conflict",
			read:   finalizers(testFinalizer), server: finalizers(testFinalizer, "a/b"), ops: remove,
			finalizers: []string{"a/b"},
		},
		"RemoveWhatIsGone": {
			reason: "a finalizer that is gone already is no error",
			read:   finalizers(testFinalizer, "a/b"), server: finalizers("a/b"), ops: remove,
			finalizers: []string{"a/b"},
		},
		"FirstAnnotations": {
			reason: "a map that does not exist is created",
			read:   same, server: same, ops: annotate(map[string]string{"a/b": "1", "gone": ""}),
			annotations: map[string]string{"a/b": "1"},
		},
		"SomeAnnotations": {
			reason: "others stay, empty ones go, keys with a slash are escaped",
			read:   vaAnnotated("x", "y", "a/b", "1", "old", "1"), server: vaAnnotated("x", "y", "a/b", "1", "old", "1"),
			ops:         annotate(map[string]string{"a/b": "2", "til.de": "3", "old": ""}),
			annotations: map[string]string{"x": "y", "a/b": "2", "til.de": "3"},
		},
		"AnnotationsAppeared": {
			reason: "annotations that another client added meanwhile are kept, and cause no conflict",
			read:   same, server: vaAnnotated("x", "y"), ops: annotate(map[string]string{"a/b": "1"}),
			annotations: map[string]string{"x": "y", "a/b": "1"},
		},
		"OtherObject": {
			reason: "an object that was created later under the same name is none of our business",
			read:   vaUID("old"), server: same, ops: add,
			stale: true,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			cluster := kubetest.New(newVA(tt.server))
			stored, err := cluster.Client().VolumeAttachments().Get(t.Context(), "va-1", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			read := newVA(vaUID(stored.UID), tt.read)
			patch, err := metadataPatch(read, tt.ops)
			if err != nil {
				t.Fatal(err)
			}
			_, err = cluster.Client().VolumeAttachments().Patch(t.Context(), "va-1", types.StrategicMergePatchType, patch, metav1.PatchOptions{})
			if kube.IsStale(err) != tt.stale || (err != nil) != tt.stale {
				t.Errorf("%s: patch %s: error %v, want a stale one: %t", tt.reason, patch, err, tt.stale)
			}
			got, err := cluster.Client().VolumeAttachments().Get(t.Context(), "va-1", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.finalizers, got.Finalizers); diff != "" {
				t.Errorf("%s: finalizers (-want +got):\n%s", tt.reason, diff)
			}
			if diff := cmp.Diff(tt.annotations, got.Annotations); diff != "" {
				t.Errorf("%s: annotations (-want +got):\n%s", tt.reason, diff)
			}
		})
	}
}

func TestNoPatchWithoutChange(t *testing.T) {
	va := newVA(vaFinalized, vaAnnotated("a", "1"))
	for name, c := range map[string]change{
		"FinalizerIsThere":    withFinalizer(testFinalizer),
		"FinalizerIsNotThere": withoutFinalizer("other/one"),
		"AnnotationsAreRight": withAnnotations(map[string]string{"a": "1", "b": ""}),
	} {
		if patch, err := metadataPatch(va, c); patch != nil || err != nil {
			t.Errorf("%s: got %s, %v", name, patch, err)
		}
	}
}

func TestIsConflict(t *testing.T) {
	resource := storagev1.Resource("volumeattachments")
	invalid := func(errs ...*field.Error) error {
		return apierrors.NewInvalid(storagev1.SchemeGroupVersion.WithKind("VolumeAttachment").GroupKind(), "va-1", errs)
	}
	tests := map[string]struct {
		reason string
		err    error
		want   bool
	}{
		"None":     {reason: "no error", err: nil},
		"OtherUID": {reason: "another object of that name, as a real server answers", err: invalid(field.Invalid(field.NewPath("metadata", "uid"), "old", "field is immutable")), want: true},
		"Deleting": {
			reason: "the object is being deleted meanwhile, as a real server answers", want: true,
			err: invalid(field.Forbidden(field.NewPath("metadata", "finalizers"), "no new finalizers can be added if the object is being deleted")),
		},
		"UIDAndRule": {
			reason: "a rule is broken whatever the UID is",
			err:    invalid(field.Invalid(field.NewPath("metadata", "uid"), "old", "field is immutable"), field.Required(field.NewPath("spec"), "")),
		},
		"Test":     {reason: "the test of a JSON patch failed", err: apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", "test failed", 0, false), want: true},
		"Rule":     {reason: "a field that breaks a rule", err: invalid(field.Invalid(field.NewPath("spec"), "x", "field is immutable"))},
		"Conflict": {reason: "the resourceVersion is old", err: apierrors.NewConflict(resource, "va-1", nil), want: true},
		"Invalid":  {reason: "an object that breaks a rule will not get better by reading it again", err: invalid()},
		"NotFound": {reason: "gone is not stale", err: apierrors.NewNotFound(resource, "va-1")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := kube.IsStale(tt.err); got != tt.want {
				t.Errorf("%s: IsStale(%v) = %t", tt.reason, tt.err, got)
			}
		})
	}
}

// FuzzSetAnnotations sends patches for any keys and values through an API.
func FuzzSetAnnotations(f *testing.F) {
	f.Add("a/b", "1", "a/b", "2")
	f.Add("til.de/1", "", "sla/sh", "\"")
	f.Add("x", "y", "z", "\\")
	f.Fuzz(func(t *testing.T, haveKey, haveValue, key, value string) {
		for _, text := range []string{haveKey, haveValue, key, value} {
			if !utf8.ValidString(text) {
				t.Skip("the API has UTF-8 only")
			}
		}
		if errs := validation.ValidateAnnotations(map[string]string{haveKey: haveValue, key: value}, nil); len(errs) > 0 {
			t.Skip("the API server refuses the key or the length of the value")
		}
		cluster := kubetest.New(newVA(vaAnnotated(haveKey, haveValue)))
		va, err := cluster.Client().VolumeAttachments().Get(t.Context(), "va-1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		patch, err := metadataPatch(va, withAnnotations(map[string]string{key: value}))
		if err != nil {
			t.Fatal(err)
		}
		if patch == nil {
			if va.Annotations[key] != value {
				t.Errorf("no patch although %q is %q, not %q", key, va.Annotations[key], value)
			}
			return
		}
		patched, err := cluster.Client().VolumeAttachments().Patch(t.Context(), "va-1", types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			t.Fatalf("patch %s: %v", patch, err)
		}
		if got := patched.Annotations[key]; got != value {
			t.Errorf("patch %s made %q of %q, want %q", patch, got, key, value)
		}
		if got := patched.Annotations[haveKey]; haveKey != key && got != haveValue {
			t.Errorf("patch %s made %q of %q, which was %q", patch, got, haveKey, haveValue)
		}
	})
}
