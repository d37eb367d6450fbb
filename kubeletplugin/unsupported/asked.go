package unsupported

import (
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

// caret reports whether kube-controller-manager attaches the volume but cannot detach it: it splits the unique name of
// the volume at this character.
func caret(r *Request) bool {
	attached := !r.SelfAttach && (r.Driver == nil || r.Driver.Spec.AttachRequired == nil || *r.Driver.Spec.AttachRequired)
	return attached && r.PV != nil && r.PV.Spec.CSI != nil && strings.Contains(r.PV.Spec.CSI.VolumeHandle, "^")
}
