package kubetest

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// Client returns a client of the cluster. All clients of a cluster are alike.
func (c *Cluster) Client() kube.Client { return client{cluster: c} }

// client implements kube.Client on a Cluster.
type client struct {
	cluster *Cluster
	session *Session // nil: cannot be cut
}

var _ kube.Client = client{}

func resourceOf[T kube.Object, L runtime.Object](c client, name, namespace string, newList func() L) kube.Resource[T, L] {
	return &resource[T, L]{cluster: c.cluster, session: c.session, kind: c.cluster.kinds[name], namespace: namespace, newList: newList}
}

// PersistentVolumes implements kube.Client.
func (c client) PersistentVolumes() kube.PersistentVolumes {
	return resourceOf[*corev1.PersistentVolume](c, "persistentvolumes", "",
		func() *corev1.PersistentVolumeList { return &corev1.PersistentVolumeList{} })
}

// PersistentVolumeClaims implements kube.Client.
func (c client) PersistentVolumeClaims(namespace string) kube.PersistentVolumeClaims {
	return resourceOf[*corev1.PersistentVolumeClaim](c, "persistentvolumeclaims", namespace,
		func() *corev1.PersistentVolumeClaimList { return &corev1.PersistentVolumeClaimList{} })
}

// Nodes implements kube.Client.
func (c client) Nodes() kube.Nodes {
	return resourceOf[*corev1.Node](c, "nodes", "", func() *corev1.NodeList { return &corev1.NodeList{} })
}

// Pods implements kube.Client.
func (c client) Pods(namespace string) kube.Pods {
	return resourceOf[*corev1.Pod](c, "pods", namespace, func() *corev1.PodList { return &corev1.PodList{} })
}

// Secrets implements kube.Client.
func (c client) Secrets(namespace string) kube.Secrets {
	return resourceOf[*corev1.Secret](c, "secrets", namespace, func() *corev1.SecretList { return &corev1.SecretList{} })
}

// Events implements kube.Client.
func (c client) Events(namespace string) kube.Events {
	return resourceOf[*corev1.Event](c, "events", namespace, func() *corev1.EventList { return &corev1.EventList{} })
}

// StorageClasses implements kube.Client.
func (c client) StorageClasses() kube.StorageClasses {
	return resourceOf[*storagev1.StorageClass](c, "storageclasses", "",
		func() *storagev1.StorageClassList { return &storagev1.StorageClassList{} })
}

// VolumeAttachments implements kube.Client.
func (c client) VolumeAttachments() kube.VolumeAttachments {
	return resourceOf[*storagev1.VolumeAttachment](c, "volumeattachments", "",
		func() *storagev1.VolumeAttachmentList { return &storagev1.VolumeAttachmentList{} })
}

// CSINodes implements kube.Client.
func (c client) CSINodes() kube.CSINodes {
	return resourceOf[*storagev1.CSINode](c, "csinodes", "", func() *storagev1.CSINodeList { return &storagev1.CSINodeList{} })
}

// CSIDrivers implements kube.Client.
func (c client) CSIDrivers() kube.CSIDrivers {
	return resourceOf[*storagev1.CSIDriver](c, "csidrivers", "", func() *storagev1.CSIDriverList { return &storagev1.CSIDriverList{} })
}

// VolumeAttributesClasses implements kube.Client.
func (c client) VolumeAttributesClasses() kube.VolumeAttributesClasses {
	return resourceOf[*storagev1.VolumeAttributesClass](c, "volumeattributesclasses", "",
		func() *storagev1.VolumeAttributesClassList { return &storagev1.VolumeAttributesClassList{} })
}

// Leases implements kube.Client.
func (c client) Leases(namespace string) kube.Leases {
	return resourceOf[*coordinationv1.Lease](c, "leases", namespace, func() *coordinationv1.LeaseList { return &coordinationv1.LeaseList{} })
}
