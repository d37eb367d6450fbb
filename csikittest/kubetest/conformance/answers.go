package conformance

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// serverFields checks which fields a client cannot change, and whether the server says so.
func serverFields(t *testing.T, s Server) {
	cases := map[string]struct {
		reason string
		patch  string
		status bool
		want   string
	}{
		"CreationTimestamp": {reason: "ignored", patch: `{"metadata":{"creationTimestamp":"2001-01-01T00:00:00Z"}}`},
		"DeletionTimestamp": {
			reason: "only a deletion sets it", patch: `{"metadata":{"deletionTimestamp":"2001-01-01T00:00:00Z"}}`,
			want: "422 Invalid named metadata.deletionTimestamp:FieldValueInvalid",
		},
		"Grace": {
			reason: "only a deletion sets it", patch: `{"metadata":{"deletionGracePeriodSeconds":7}}`,
			want: "422 Invalid named metadata.deletionGracePeriodSeconds:FieldValueInvalid",
		},
		"Generation":   {reason: "ignored", patch: `{"metadata":{"generation":7}}`},
		"StatusByMain": {reason: "the status has a subresource", patch: `{"status":{"nodeInfo":{"kernelVersion":"9"}}}`},
		"SpecByStatus": {reason: "the subresource changes the status only", patch: `{"spec":{"unschedulable":true}}`, status: true},
		"UnknownField": {reason: "dropped", patch: `{"spec":{"colour":"red"}}`},
		"SameUID":      {reason: "a patch may name its object", patch: `{"metadata":{"uid":"UID"}}`},
		"Empty":        {reason: "changes nothing", patch: `{}`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			before := newNode(t, s)
			patch := []byte(tc.patch)
			if name == "SameUID" {
				patch = []byte(`{"metadata":{"uid":"` + string(before.UID) + `"}}`)
			}
			var subresources []string
			if tc.status {
				subresources = []string{"status"}
			}
			_, err := s.Client.Nodes().Patch(t.Context(), before.Name, types.MergePatchType, patch, metav1.PatchOptions{}, subresources...)
			want := tc.want
			if want == "" {
				want = "ok"
			}
			if got := answer(err); got != want {
				t.Errorf("%s: got %q, want %q (%v)", tc.reason, got, want, err)
			}
			after := must[*corev1.Node](t)(s.Client.Nodes().Get(t.Context(), before.Name, metav1.GetOptions{}))
			if d := cmp.Diff(before, after); d != "" {
				t.Errorf("%s: nothing changes, not even the resourceVersion (-before +after):\n%s", tc.reason, d)
			}
		})
	}
}

// answers checks the answers to requests for another state of an object, or for another object, than the stored one.
func answers(t *testing.T, s Server) {
	patch := func(kind types.PatchType, patch string, subresources ...string) func(context.Context, *storagev1.VolumeAttachment) error {
		return func(ctx context.Context, va *storagev1.VolumeAttachment) error {
			_, err := s.Client.VolumeAttachments().Patch(ctx, va.Name, kind, []byte(patch), metav1.PatchOptions{}, subresources...)
			return err
		}
	}
	update := func(change func(*storagev1.VolumeAttachment)) func(context.Context, *storagev1.VolumeAttachment) error {
		return func(ctx context.Context, va *storagev1.VolumeAttachment) error {
			change(va)
			_, err := s.Client.VolumeAttachments().Update(ctx, va, metav1.UpdateOptions{})
			return err
		}
	}
	remove := func(p metav1.Preconditions) func(context.Context, *storagev1.VolumeAttachment) error {
		return func(ctx context.Context, va *storagev1.VolumeAttachment) error {
			return s.Client.VolumeAttachments().Delete(ctx, va.Name, metav1.DeleteOptions{Preconditions: &p})
		}
	}
	const merge, strategic, operations = types.MergePatchType, types.StrategicMergePatchType, types.JSONPatchType
	const otherUID = "422 Invalid named metadata.uid:FieldValueInvalid"
	cases := map[string]struct {
		do   func(context.Context, *storagev1.VolumeAttachment) error
		want string
	}{
		// Another object of that name: a patch breaks the rule that UIDs do not change, any other request has a precondition.
		"UIDMerge":      {do: patch(merge, `{"metadata":{"uid":"other"}}`), want: otherUID},
		"UIDStrategic":  {do: patch(strategic, `{"metadata":{"uid":"other","finalizers":["e.x/b"]}}`), want: otherUID},
		"UIDOperations": {do: patch(operations, `[{"op":"replace","path":"/metadata/uid","value":"other"}]`), want: otherUID},
		"UIDStatus":     {do: patch(merge, `{"metadata":{"uid":"other"},"status":{"attached":true}}`, "status"), want: otherUID},
		"UIDUpdate":     {do: update(func(va *storagev1.VolumeAttachment) { va.UID = "other" }), want: "409 Conflict named"},
		"UIDDelete":     {do: remove(metav1.Preconditions{UID: ptr.To(types.UID("other"))}), want: "409 Conflict named"},
		"UIDBoth": {
			do: patch(merge, `{"metadata":{"uid":"other","resourceVersion":"1"}}`), want: "409 Conflict named",
		},
		// An older state of the object.
		"VersionMerge":  {do: patch(merge, `{"metadata":{"resourceVersion":"1"}}`), want: "409 Conflict named"},
		"VersionUpdate": {do: update(func(va *storagev1.VolumeAttachment) { va.ResourceVersion = "1" }), want: "409 Conflict named"},
		"VersionNone": {
			do: update(func(va *storagev1.VolumeAttachment) { va.ResourceVersion = "" }), want: "422 Invalid named metadata.resourceVersion:FieldValueInvalid",
		},
		"VersionDelete": {do: remove(metav1.Preconditions{ResourceVersion: ptr.To("1")}), want: "409 Conflict named"},
		"TestFails":     {do: patch(operations, `[{"op":"test","path":"/metadata/finalizers/0","value":"x"}]`), want: "422 Invalid"},
		"NoSuchPath":    {do: patch(operations, `[{"op":"remove","path":"/spec/x/y"}]`), want: "422 Invalid"},
		// Requests that make no sense.
		"NonsenseOperations": {do: patch(operations, `{`), want: "400 BadRequest without details"},
		"NonsenseMerge":      {do: patch(merge, `[`), want: "400 BadRequest without details"},
		"WrongType":          {do: patch(merge, `{"metadata":{"finalizers":"b"}}`), want: "422 Invalid patch:FieldValueInvalid"},
		"Rename":             {do: patch(merge, `{"metadata":{"name":"x"}}`), want: "400 BadRequest without details"},
		"NoSuchSubresource":  {do: patch(merge, `{"spec":{"nodeName":"x"}}`, "scale"), want: "404 NotFound"},
		"BadFinalizer":       {do: patch(merge, `{"metadata":{"finalizers":["e.x/not a name"]}}`), want: "422 Invalid named metadata.finalizers:FieldValueInvalid"},
		"BadLabel":           {do: patch(merge, `{"metadata":{"labels":{"a":"not a value"}}}`), want: "422 Invalid named metadata.labels:FieldValueInvalid"},
		"BadAnnotation":      {do: patch(merge, `{"metadata":{"annotations":{"not a key":"a"}}}`), want: "422 Invalid named metadata.annotations:FieldValueInvalid"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			err := tc.do(t.Context(), newAttachment(t, s, "e.x/a"))
			if got := answer(err); got != tc.want {
				t.Errorf("got %q, want %q (%v)", got, tc.want, err)
			}
		})
	}
}
