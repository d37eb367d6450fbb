package resolve

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// setGroup sets the fields of a publication for securityContext.fsGroup. Modes are the access modes of a PersistentVolume; an inline
// volume belongs to one pod, as if it were ReadWriteOnce.
func setGroup(p *volume.Publication, pod *corev1.Pod, d *storagev1.CSIDriver, modes []corev1.PersistentVolumeAccessMode) {
	sc := pod.Spec.SecurityContext
	if sc == nil || sc.FSGroup == nil {
		return
	}
	p.FSGroup = sc.FSGroup
	p.ChangeGroup = groupPolicy(d) == storagev1.FileFSGroupPolicy ||
		groupPolicy(d) == storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy && p.Volume.FSType != "" && fromOneNode(modes)
	p.OnRootMismatch = sc.FSGroupChangePolicy != nil && *sc.FSGroupChangePolicy == corev1.FSGroupChangeOnRootMismatch
}

// groupPolicy is ReadWriteOnceWithFSType unless the driver says otherwise.
func groupPolicy(d *storagev1.CSIDriver) storagev1.FSGroupPolicy {
	if d == nil || d.Spec.FSGroupPolicy == nil || *d.Spec.FSGroupPolicy == "" {
		return storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	}
	return *d.Spec.FSGroupPolicy
}

// fromOneNode reports whether a mode lets only one node, or one pod, write to the volume.
func fromOneNode(modes []corev1.PersistentVolumeAccessMode) bool {
	return slices.Contains(modes, corev1.ReadWriteOnce) || slices.Contains(modes, corev1.ReadWriteOncePod)
}
