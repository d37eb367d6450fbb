package kube_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// full returns metadata with everything that transforms drop or keep.
func full() metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: "ns", Name: "x", UID: "u", ResourceVersion: "1", Finalizers: []string{"f"},
		Labels:        map[string]string{"zone": "a", "noise": "b"},
		Annotations:   map[string]string{"id": "c", "noise": "d", corev1.LastAppliedConfigAnnotation: "{...}"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}},
	}
}

func kept(labels, annotations map[string]string) metav1.ObjectMeta {
	meta := full()
	meta.Labels, meta.Annotations, meta.ManagedFields = labels, annotations, nil
	return meta
}

func TestSlim(t *testing.T) {
	t.Parallel()
	all := kept(full().Labels, map[string]string{"id": "c", "noise": "d"})
	cases := map[string]struct {
		reason    string
		got, want kube.Object
	}{
		"Node": {
			reason: "Spec and status go, asked metadata stays.",
			got: kube.SlimNode(kube.Keep{Labels: []string{"zone", "other"}, Annotations: []string{"id"}})(&corev1.Node{
				ObjectMeta: full(), Spec: corev1.NodeSpec{ProviderID: "p"}, Status: corev1.NodeStatus{Phase: corev1.NodeRunning},
			}),
			want: &corev1.Node{ObjectMeta: kept(map[string]string{"zone": "a"}, map[string]string{"id": "c"})},
		},
		"NoMetadata": {
			reason: "Empty lists keep nothing.",
			got:    kube.SlimNode(kube.Keep{Labels: []string{}, Annotations: []string{}})(&corev1.Node{ObjectMeta: full()}),
			want:   &corev1.Node{ObjectMeta: kept(nil, nil)},
		},
		"AllMetadata": {
			reason: "No lists keep all but kubectl's copy.",
			got:    kube.SlimNode(kube.Keep{})(&corev1.Node{ObjectMeta: full()}),
			want:   &corev1.Node{ObjectMeta: all},
		},
		"LastApplied": {
			reason: "Kubectl's copy can be asked for.",
			got:    kube.SlimNode(kube.Keep{Labels: []string{}, Annotations: []string{corev1.LastAppliedConfigAnnotation}})(&corev1.Node{ObjectMeta: full()}),
			want:   &corev1.Node{ObjectMeta: kept(nil, map[string]string{corev1.LastAppliedConfigAnnotation: "{...}"})},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if d := cmp.Diff(tc.want, tc.got); d != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, d)
			}
		})
	}
}

// A transform sees objects again on a resync: the second time changes nothing.
func TestSlimIsIdempotent(t *testing.T) {
	t.Parallel()
	slim := kube.SlimNode(kube.Keep{Labels: []string{"zone"}, Annotations: []string{"id"}})
	once := slim(&corev1.Node{ObjectMeta: full(), Spec: corev1.NodeSpec{ProviderID: "p"}})
	if d := cmp.Diff(once.DeepCopy(), slim(once)); d != "" {
		t.Errorf("second pass (-first +second):\n%s", d)
	}
}
