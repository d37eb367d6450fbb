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
	now := metav1.Now()
	return metav1.ObjectMeta{
		Namespace: "ns", Name: "x", UID: "u", ResourceVersion: "1", DeletionTimestamp: &now, Finalizers: []string{"f"},
		Labels:          map[string]string{"zone": "a"},
		Annotations:     map[string]string{"id": "c", "noise": "d", corev1.LastAppliedConfigAnnotation: "{...}"},
		OwnerReferences: []metav1.OwnerReference{{Name: "owner"}},
		ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: "kubectl"}},
	}
}

// identity returns what identifies the object of full.
func identity(full metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "ns", Name: "x", UID: "u", ResourceVersion: "1", DeletionTimestamp: full.DeletionTimestamp}
}

func TestSlimMeta(t *testing.T) {
	t.Parallel()
	meta := full()
	for name, tc := range map[string]struct {
		annotations []string
		want        map[string]string
	}{
		"None":    {},
		"Named":   {annotations: []string{"id", "other"}, want: map[string]string{"id": "c"}},
		"Missing": {annotations: []string{"other"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := identity(meta)
			want.Annotations = tc.want
			got := kube.SlimMeta(meta, tc.annotations...)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("kept (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(want, kube.SlimMeta(got, tc.annotations...)); diff != "" {
				t.Errorf("kept of what was kept, as a resync brings it (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSlimNode(t *testing.T) {
	t.Parallel()
	node := &corev1.Node{ObjectMeta: full(), Spec: corev1.NodeSpec{ProviderID: "p"}, Status: corev1.NodeStatus{Phase: corev1.NodeRunning}}
	want := &corev1.Node{ObjectMeta: identity(node.ObjectMeta)}
	want.Labels = map[string]string{"zone": "a"}
	if diff := cmp.Diff(want, kube.SlimNode(node)); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
}
