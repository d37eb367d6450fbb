package kube

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// StripManagedFields drops the bookkeeping of server-side apply, often half of an
// object. Informers do it always.
func StripManagedFields[T Object](obj T) T {
	obj.SetManagedFields(nil)
	return obj
}

// Keep names the labels and annotations that a transform leaves. nil keeps all of
// them, except the copy of the whole object that kubectl apply leaves behind.
type Keep struct {
	Labels      []string
	Annotations []string
}

// SlimNode returns a transform that keeps a Node's metadata and drops spec and status,
// which is most of it.
func SlimNode(keep Keep) func(*corev1.Node) *corev1.Node {
	return func(node *corev1.Node) *corev1.Node {
		slimMeta(node, keep)
		node.Spec, node.Status = corev1.NodeSpec{}, corev1.NodeStatus{}
		return node
	}
}

func slimMeta(obj metav1.Object, keep Keep) {
	obj.SetManagedFields(nil)
	obj.SetLabels(pick(obj.GetLabels(), keep.Labels))
	annotations := pick(obj.GetAnnotations(), keep.Annotations)
	if !slices.Contains(keep.Annotations, corev1.LastAppliedConfigAnnotation) {
		delete(annotations, corev1.LastAppliedConfigAnnotation)
	}
	if len(annotations) == 0 {
		annotations = nil
	}
	obj.SetAnnotations(annotations)
}

// pick returns the entries of m that names has, or m itself without names.
func pick(m map[string]string, names []string) map[string]string {
	if names == nil || len(m) == 0 {
		return m
	}
	var kept map[string]string
	for _, name := range names {
		value, ok := m[name]
		if !ok {
			continue
		}
		if kept == nil {
			kept = make(map[string]string, len(names))
		}
		kept[name] = value
	}
	return kept
}
