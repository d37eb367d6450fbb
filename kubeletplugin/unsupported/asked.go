package unsupported

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

func block(r *Request) bool {
	return r.PV != nil && r.PV.Spec.CSI != nil && r.PV.Spec.VolumeMode != nil && *r.PV.Spec.VolumeMode == corev1.PersistentVolumeBlock
}

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
	if r.Driver == nil || r.Driver.Spec.SELinuxMount == nil || !*r.Driver.Spec.SELinuxMount || r.PV == nil ||
		!slices.Equal(r.PV.Spec.AccessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}) {
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

// caret reports whether kube-controller-manager attaches the volume but cannot detach it: it splits the unique name of
// the volume at this character.
func caret(r *Request) bool {
	attached := r.Driver == nil || r.Driver.Spec.AttachRequired == nil || *r.Driver.Spec.AttachRequired
	return attached && r.PV != nil && r.PV.Spec.CSI != nil && strings.Contains(r.PV.Spec.CSI.VolumeHandle, "^")
}
