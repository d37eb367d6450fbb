package kube

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// StripManagedFields drops the bookkeeping of server-side apply, often half of an
// object. Informers do it always.
func StripManagedFields[T Object](obj T) T {
	obj.SetManagedFields(nil)
	return obj
}

// SlimMeta keeps what identifies an object, and the named annotations.
func SlimMeta(meta metav1.ObjectMeta, annotations ...string) metav1.ObjectMeta {
	slim := metav1.ObjectMeta{
		Namespace: meta.Namespace, Name: meta.Name, UID: meta.UID, ResourceVersion: meta.ResourceVersion, DeletionTimestamp: meta.DeletionTimestamp,
	}
	for _, name := range annotations {
		if value, ok := meta.Annotations[name]; ok {
			metav1.SetMetaDataAnnotation(&slim, name, value)
		}
	}
	return slim
}

// SlimNode is a transform that keeps what identifies a Node, and its labels.
func SlimNode(node *corev1.Node) *corev1.Node {
	slim := &corev1.Node{ObjectMeta: SlimMeta(node.ObjectMeta)}
	slim.Labels = node.Labels
	return slim
}
