package conformance

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// patches checks the effect of the three kinds of patches on maps, and on lists with and without merge keys.
func patches(t *testing.T, s Server) { //nolint:funlen // one table
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
			patch: `{"metadata":{"finalizers":["e.x/w"]}}`, path: finalizers, want: `["e.x/w","e.x/x","e.x/y","e.x/z"]`,
		},
		"StrategicKnown": {
			reason: "An element that is there is not there twice.", kind: strategic,
			patch: `{"metadata":{"finalizers":["e.x/y"]}}`, path: finalizers, want: `["e.x/x","e.x/y","e.x/z"]`,
		},
		"StrategicDeletesPrimitives": {
			reason: "Elements of such lists go by a directive.", kind: strategic,
			patch: `{"metadata":{"$deleteFromPrimitiveList/finalizers":["e.x/x","e.x/z","e.x/none"]}}`, path: finalizers, want: `["e.x/y"]`,
		},
		"StrategicDeletesAndAdds": {
			reason: "Both at once is how a finalizer is exchanged.", kind: strategic,
			patch: `{"metadata":{"$deleteFromPrimitiveList/finalizers":["e.x/x","e.x/y","e.x/z"],"finalizers":["e.x/w"]}}`, path: finalizers, want: `["e.x/w"]`,
		},
		"StrategicOrder": {
			reason: "A patch may set the order of a list.", kind: strategic,
			patch: `{"metadata":{"$setElementOrder/finalizers":["e.x/z","e.x/y","e.x/x"],"finalizers":["e.x/x"]}}`, path: finalizers, want: `["e.x/z","e.x/y","e.x/x"]`,
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
			reason: "An element is found by its key.", kind: strategic, status: true,
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
			reason: "Merge patches know no lists.", kind: merge, patch: `{"metadata":{"finalizers":["e.x/w"]}}`, path: finalizers, want: `["e.x/w"]`,
		},
		"MergeTakesDirectivesForFields": {
			reason: "Directives are strategic; elsewhere they are unknown fields, and dropped.", kind: merge,
			patch: `{"metadata":{"$deleteFromPrimitiveList/finalizers":["e.x/x"]}}`, path: finalizers, want: `["e.x/x","e.x/y","e.x/z"]`,
		},
		"MergeRemovesKey": {
			reason: "null removes a key.", kind: merge, patch: `{"metadata":{"labels":{"a":null}}}`, path: labels, want: `{"b":"2"}`,
		},
		"MergeRemovesMap": {
			reason: "null removes the map.", kind: merge, patch: `{"metadata":{"labels":null}}`, path: labels, want: `null`,
		},
		"JSONInserts": {
			reason: "Operations know places in lists.", kind: operations,
			patch: `[{"op":"add","path":"/metadata/finalizers/1","value":"e.x/w"}]`, path: finalizers, want: `["e.x/x","e.x/w","e.x/y","e.x/z"]`,
		},
		"JSONRemoves": {
			reason: "And take from them, one after the other.", kind: operations,
			patch: `[{"op":"remove","path":"/metadata/finalizers/0"},{"op":"remove","path":"/metadata/finalizers/0"}]`, path: finalizers, want: `["e.x/z"]`,
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
			before := newNode(t, s)
			var subresources []string
			if tc.status {
				subresources = []string{"status"}
			}
			got, err := s.Client.Nodes().Patch(t.Context(), before.Name, tc.kind, []byte(tc.patch), metav1.PatchOptions{}, subresources...)
			if err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			if d := cmp.Diff(tc.want, leaf(t, got, tc.path...)); d != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, d)
			}
			stored := must[*corev1.Node](t)(s.Client.Nodes().Get(t.Context(), before.Name, metav1.GetOptions{}))
			if d := cmp.Diff(got, stored); d != "" {
				t.Errorf("the answer differs from the stored object (-answer +stored):\n%s", d)
			}
		})
	}
}
