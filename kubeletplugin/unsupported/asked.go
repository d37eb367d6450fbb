package unsupported

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// migrated reports whether the volume is of an in-tree plugin that Kubernetes 1.36 replaces by a CSI driver.
func migrated(r *Request) bool {
	return r.PV != nil && migratedSpec(&r.PV.Spec.PersistentVolumeSource) || migratedInPod(&r.Volume.VolumeSource)
}

func migratedInPod(v *corev1.VolumeSource) bool {
	return v.GCEPersistentDisk != nil || v.AWSElasticBlockStore != nil || v.Cinder != nil ||
		v.AzureDisk != nil || v.AzureFile != nil || v.VsphereVolume != nil || v.PortworxVolume != nil
}

func migratedSpec(s *corev1.PersistentVolumeSource) bool {
	return s.GCEPersistentDisk != nil || s.AWSElasticBlockStore != nil || s.Cinder != nil ||
		s.AzureDisk != nil || s.AzureFile != nil || s.VsphereVolume != nil || s.PortworxVolume != nil
}

// seLinux reports whether a kubelet would mount with the pod's context, which it does for ReadWriteOncePod volumes.
func seLinux(r *Request) bool {
	if r.Driver == nil || r.Driver.Spec.SELinuxMount == nil || !*r.Driver.Spec.SELinuxMount || !mountedForOnePod(r.PV) {
		return false
	}
	if c := r.Pod.Spec.SecurityContext; c != nil {
		if c.SELinuxChangePolicy != nil && *c.SELinuxChangePolicy == corev1.SELinuxChangePolicyRecursive {
			return false
		}
		if c.SELinuxOptions != nil {
			return true
		}
	}
	return slices.ContainsFunc(r.Pod.Spec.Containers, func(c corev1.Container) bool {
		return c.SecurityContext != nil && c.SecurityContext.SELinuxOptions != nil
	})
}

// mountedForOnePod reports whether a volume has a file system and only the access mode ReadWriteOncePod.
func mountedForOnePod(pv *corev1.PersistentVolume) bool {
	return pv != nil && (pv.Spec.VolumeMode == nil || *pv.Spec.VolumeMode != corev1.PersistentVolumeBlock) &&
		slices.Equal(pv.Spec.AccessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod})
}

// caret reports whether kube-controller-manager attaches the volume but cannot detach it: it splits the unique name of
// the volume at this character.
func caret(r *Request) bool {
	attached := r.Driver == nil || r.Driver.Spec.AttachRequired == nil || *r.Driver.Spec.AttachRequired
	return attached && r.PV != nil && r.PV.Spec.CSI != nil && strings.Contains(r.PV.Spec.CSI.VolumeHandle, "^")
}
