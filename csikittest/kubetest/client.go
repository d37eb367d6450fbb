package kubetest

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// Client returns a client of the cluster. All clients of a cluster are alike.
func (c *Cluster) Client() kube.Client { return c.connection() }

// client implements kube.Client on a Cluster.
type client struct {
	cluster *Cluster
	session *Session // nil: cannot be cut
}

var _ kube.Client = client{}

func (c client) connection() client { return c }

// resourceOf returns the resource of a kind, whose lists are W.
func resourceOf[T kube.Object, W any, L interface {
	*W
	runtime.Object
}](c client, name, namespace string) kube.Resource[T, L] {
	return ResourceOf[T, W, L](c, name, namespace)
}

// PersistentVolumes implements kube.Client.
func (c client) PersistentVolumes() kube.PersistentVolumes {
	return resourceOf[*corev1.PersistentVolume, corev1.PersistentVolumeList](c, "persistentvolumes", "")
}

// PersistentVolumeClaims implements kube.Client.
func (c client) PersistentVolumeClaims(namespace string) kube.PersistentVolumeClaims {
	return resourceOf[*corev1.PersistentVolumeClaim, corev1.PersistentVolumeClaimList](c, "persistentvolumeclaims", namespace)
}

// Nodes implements kube.Client.
func (c client) Nodes() kube.Nodes {
	return resourceOf[*corev1.Node, corev1.NodeList](c, "nodes", "")
}

// Pods implements kube.Client.
func (c client) Pods(namespace string) kube.Pods {
	return resourceOf[*corev1.Pod, corev1.PodList](c, "pods", namespace)
}

// Secrets implements kube.Client.
func (c client) Secrets(namespace string) kube.Secrets {
	return resourceOf[*corev1.Secret, corev1.SecretList](c, "secrets", namespace)
}

// Events implements kube.Client.
func (c client) Events(namespace string) kube.Events {
	return resourceOf[*corev1.Event, corev1.EventList](c, "events", namespace)
}

// StorageClasses implements kube.Client.
func (c client) StorageClasses() kube.StorageClasses {
	return resourceOf[*storagev1.StorageClass, storagev1.StorageClassList](c, "storageclasses", "")
}

// VolumeAttachments implements kube.Client.
func (c client) VolumeAttachments() kube.VolumeAttachments {
	return resourceOf[*storagev1.VolumeAttachment, storagev1.VolumeAttachmentList](c, "volumeattachments", "")
}

// CSINodes implements kube.Client.
func (c client) CSINodes() kube.CSINodes {
	return resourceOf[*storagev1.CSINode, storagev1.CSINodeList](c, "csinodes", "")
}

// CSIDrivers implements kube.Client.
func (c client) CSIDrivers() kube.CSIDrivers {
	return resourceOf[*storagev1.CSIDriver, storagev1.CSIDriverList](c, "csidrivers", "")
}

// VolumeAttributesClasses implements kube.Client.
func (c client) VolumeAttributesClasses() kube.VolumeAttributesClasses {
	return resourceOf[*storagev1.VolumeAttributesClass, storagev1.VolumeAttributesClassList](c, "volumeattributesclasses", "")
}

// Leases implements kube.Client.
func (c client) Leases(namespace string) kube.Leases {
	return resourceOf[*coordinationv1.Lease, coordinationv1.LeaseList](c, "leases", namespace)
}
