package resolve

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/longshore-csi/longshore/kubeletplugin/layout"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

func persistentPublication(pod *corev1.Pod, pv *corev1.PersistentVolume, d *storagev1.CSIDriver, readOnly bool) *volume.Publication {
	src, claim := pv.Spec.CSI, pv.Spec.ClaimRef // which is there, or the volume is refused
	p := &volume.Publication{
		Volume: volume.Volume{
			Name:         layout.Unique(src.Driver, src.VolumeHandle),
			Driver:       src.Driver,
			Handle:       src.VolumeHandle,
			Attachable:   attachRequired(d),
			FSType:       src.FSType,
			MountOptions: pv.Spec.MountOptions,
			AccessMode:   accessMode(pv),
			Exclusive:    len(pv.Spec.AccessModes) == 1 && accessMode(pv) == corev1.ReadWriteOncePod,
			Attributes:   src.VolumeAttributes,
			StageSecret:  src.NodeStageSecretRef,
		},
		Pod:           podOf(pod),
		SpecName:      pv.Name,
		ReadOnly:      readOnly,
		PodInfo:       podInfo(d),
		PublishSecret: src.NodePublishSecretRef,
		Running:       running(pod),
		Claim:         volume.Claim{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
		Capacity:      pv.Spec.Capacity.Storage().Value(),
	}
	if isBlock(pv) { // a device has neither mount options nor files
		p.Volume.Device, p.Volume.FSType, p.Volume.MountOptions = pv.Name, "", nil
	} else {
		setGroup(p, pod, d, pv.Spec.AccessModes)
	}
	setTokens(p, d)
	return p
}

func inlinePublication(pod *corev1.Pod, v *corev1.Volume, d *storagev1.CSIDriver) *volume.Publication {
	src := v.CSI
	p := &volume.Publication{
		Volume: volume.Volume{
			Name:       layout.UniqueInline(pod.UID, v.Name),
			Driver:     src.Driver,
			Handle:     layout.InlineHandle(pod.UID, v.Name),
			Ephemeral:  true,
			AccessMode: corev1.ReadWriteOnce,
			Attributes: src.VolumeAttributes,
		},
		Pod:      podOf(pod),
		SpecName: v.Name,
		ReadOnly: src.ReadOnly != nil && *src.ReadOnly,
		PodInfo:  podInfo(d),
		Running:  running(pod),
	}
	if src.FSType != nil {
		p.Volume.FSType = *src.FSType
	}
	if src.NodePublishSecretRef != nil {
		p.PublishSecret = &corev1.SecretReference{Namespace: pod.Namespace, Name: src.NodePublishSecretRef.Name}
	}
	setGroup(p, pod, d, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce})
	setTokens(p, d)
	return p
}

// setTokens sets the fields of a publication for the service account tokens that the driver wants, and for calls that are repeated to
// renew them.
func setTokens(p *volume.Publication, d *storagev1.CSIDriver) {
	if d == nil {
		return
	}
	p.Republish = d.Spec.RequiresRepublish != nil && *d.Spec.RequiresRepublish
	if len(d.Spec.TokenRequests) == 0 {
		return
	}
	p.Tokens = d.Spec.TokenRequests
	p.TokensInSecrets = d.Spec.ServiceAccountTokenInSecrets != nil && *d.Spec.ServiceAccountTokenInSecrets
}

func podOf(pod *corev1.Pod) volume.Pod {
	return volume.Pod{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
		ServiceAccount: pod.Spec.ServiceAccountName,
	}
}

// attachRequired is true unless the driver says otherwise.
func attachRequired(d *storagev1.CSIDriver) bool {
	return d == nil || d.Spec.AttachRequired == nil || *d.Spec.AttachRequired
}

func podInfo(d *storagev1.CSIDriver) bool {
	return d != nil && d.Spec.PodInfoOnMount != nil && *d.Spec.PodInfoOnMount
}

func accessMode(pv *corev1.PersistentVolume) corev1.PersistentVolumeAccessMode {
	if len(pv.Spec.AccessModes) == 0 {
		return corev1.ReadWriteOnce
	}
	return pv.Spec.AccessModes[0]
}

// running reports whether containers of the pod may be running. A kubelet that was here before may not have come to
// report the phase.
func running(pod *corev1.Pod) bool {
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			if list[i].State.Running != nil {
				return true
			}
		}
	}
	return pod.Status.Phase == corev1.PodRunning
}
