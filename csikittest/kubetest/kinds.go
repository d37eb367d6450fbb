package kubetest

import (
	"cmp"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// kind is what the store must know about a kind. The rules are those of the API
// server's registry strategies (pkg/registry of Kubernetes).
type kind struct {
	number         int
	resource, name string
	groupVersion   schema.GroupVersion
	namespaced     bool
	newObject      func() kube.Object
	// copyStatus copies the status from one object to another; nil: no status subresource.
	copyStatus func(to, from kube.Object)
	// initStatus is what creation leaves of the status; nil: what the client sent.
	initStatus func(obj kube.Object)
	// unconditional updates need no resourceVersion.
	unconditional bool
	// statusResetsMeta: labels, annotations and finalizers cannot be changed by way of the status.
	statusResetsMeta bool
	// fields are the field selectors besides metadata.name and metadata.namespace.
	fields func(obj kube.Object) map[string]string
	// custom kinds are those of CustomResourceDefinitions.
	custom bool
	// validate are the rules for objects; nil: there are none here.
	validate func(obj, before map[string]any) field.ErrorList
	// defaults sets the fields that a client may leave out; nil: there are none here.
	defaults func(obj kube.Object)
	// managed kinds have managedFields, and take server-side apply.
	managed bool
}

func (k *kind) groupResource() schema.GroupResource {
	return schema.GroupResource{Group: k.groupVersion.Group, Resource: k.resource}
}

func (k *kind) groupKind() schema.GroupKind {
	return schema.GroupKind{Group: k.groupVersion.Group, Kind: k.name}
}

func kinds() []*kind {
	return append(statusKinds(), plainKinds()...)
}

// statusKinds have a status subresource.
func statusKinds() []*kind {
	core, storage := corev1.SchemeGroupVersion, storagev1.SchemeGroupVersion
	return []*kind{
		{
			resource: "persistentvolumes", name: "PersistentVolume", groupVersion: core, unconditional: true,
			newObject: func() kube.Object { return &corev1.PersistentVolume{} },
			copyStatus: statusOf(func(to, from *corev1.PersistentVolume) {
				to.Status = from.Status
			}),
			initStatus: on(func(pv *corev1.PersistentVolume) {
				pv.Status = corev1.PersistentVolumeStatus{Phase: corev1.VolumePending}
			}),
		},
		{
			resource: "persistentvolumeclaims", name: "PersistentVolumeClaim", groupVersion: core, namespaced: true, unconditional: true,
			newObject:  func() kube.Object { return &corev1.PersistentVolumeClaim{} },
			copyStatus: statusOf(func(to, from *corev1.PersistentVolumeClaim) { to.Status = from.Status }),
			initStatus: on(func(pvc *corev1.PersistentVolumeClaim) {
				pvc.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
			}),
		},
		{
			resource: "nodes", name: "Node", groupVersion: core, unconditional: true,
			newObject:  func() kube.Object { return &corev1.Node{} },
			copyStatus: statusOf(func(to, from *corev1.Node) { to.Status = from.Status }),
		},
		{
			resource: "pods", name: "Pod", groupVersion: core, namespaced: true, unconditional: true,
			newObject:  func() kube.Object { return &corev1.Pod{} },
			copyStatus: statusOf(func(to, from *corev1.Pod) { to.Status = from.Status }),
			initStatus: on(func(pod *corev1.Pod) { pod.Status = corev1.PodStatus{Phase: corev1.PodPending} }),
			fields:     podFields,
		},
		{
			resource: "volumeattachments", name: "VolumeAttachment", groupVersion: storage, statusResetsMeta: true,
			newObject:  func() kube.Object { return &storagev1.VolumeAttachment{} },
			copyStatus: statusOf(func(to, from *storagev1.VolumeAttachment) { to.Status = from.Status }),
			initStatus: on(func(va *storagev1.VolumeAttachment) { va.Status = storagev1.VolumeAttachmentStatus{} }),
		},
		{ // since Kubernetes 1.37
			resource: "csinodes", name: "CSINode", groupVersion: storage, statusResetsMeta: true,
			newObject:  func() kube.Object { return &storagev1.CSINode{} },
			copyStatus: statusOf(func(to, from *storagev1.CSINode) { to.Status = from.Status }),
			initStatus: on(func(node *storagev1.CSINode) { node.Status = storagev1.CSINodeStatus{} }),
		},
	}
}

// plainKinds have no status subresource.
func plainKinds() []*kind {
	core, storage, coordination := corev1.SchemeGroupVersion, storagev1.SchemeGroupVersion, coordinationv1.SchemeGroupVersion
	return []*kind{
		{
			resource: "secrets", name: "Secret", groupVersion: core, namespaced: true, unconditional: true,
			newObject: func() kube.Object { return &corev1.Secret{} },
		},
		{
			resource: "events", name: "Event", groupVersion: core, namespaced: true, unconditional: true,
			newObject: func() kube.Object { return &corev1.Event{} },
			fields:    eventFields,
		},
		{
			resource: "storageclasses", name: "StorageClass", groupVersion: storage, unconditional: true,
			newObject: func() kube.Object { return &storagev1.StorageClass{} },
		},
		{
			resource: "csidrivers", name: "CSIDriver", groupVersion: storage, managed: true,
			newObject: func() kube.Object { return &storagev1.CSIDriver{} },
			defaults:  on(defaultCSIDriver), validate: csiDriverRules,
		},
		{
			resource: "volumeattributesclasses", name: "VolumeAttributesClass", groupVersion: storage, unconditional: true,
			newObject: func() kube.Object { return &storagev1.VolumeAttributesClass{} },
		},
		{
			resource: "leases", name: "Lease", groupVersion: coordination, namespaced: true,
			newObject: func() kube.Object { return &coordinationv1.Lease{} },
		},
	}
}

func podFields(obj kube.Object) map[string]string {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil
	}
	return map[string]string{
		"spec.nodeName":           pod.Spec.NodeName,
		"spec.serviceAccountName": pod.Spec.ServiceAccountName,
		"status.phase":            string(pod.Status.Phase),
	}
}

func eventFields(obj kube.Object) map[string]string {
	event, ok := obj.(*corev1.Event)
	if !ok {
		return nil
	}
	return map[string]string{
		"involvedObject.kind":      event.InvolvedObject.Kind,
		"involvedObject.namespace": event.InvolvedObject.Namespace,
		"involvedObject.name":      event.InvolvedObject.Name,
		"involvedObject.uid":       string(event.InvolvedObject.UID),
		"reason":                   event.Reason,
		"source":                   cmp.Or(event.Source.Component, event.ReportingController),
		"type":                     event.Type,
	}
}

// statusOf makes a copy function for any object from one for a type.
func statusOf[T kube.Object](f func(to, from T)) func(to, from kube.Object) {
	return func(to, from kube.Object) {
		source, ok := from.DeepCopyObject().(T)
		target, same := to.(T)
		if ok && same {
			f(target, source)
		}
	}
}

func on[T kube.Object](f func(T)) func(kube.Object) {
	return func(obj kube.Object) {
		if typed, ok := obj.(T); ok {
			f(typed)
		}
	}
}
