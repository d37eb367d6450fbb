package resolve

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/longshore-csi/longshore/kubeletplugin/layout"
)

// pvcProtection keeps a claim from going while a pod uses it.
const pvcProtection = "kubernetes.io/pvc-protection"

// claimOf returns the claim that a pod volume names or generates, and whether it is mounted
// read-only; the name is empty for volumes without a claim.
func claimOf(pod *corev1.Pod, v *corev1.Volume) (name string, readOnly bool) {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName, v.PersistentVolumeClaim.ReadOnly
	case v.Ephemeral != nil:
		return ephemeral.VolumeClaimName(pod, v), false
	default:
		return "", false
	}
}

// checkClaim checks that the pod may use the claim now.
func checkClaim(pod *corev1.Pod, v *corev1.Volume, pvc *corev1.PersistentVolumeClaim) error {
	if v.Ephemeral != nil {
		if err := ephemeral.VolumeIsForPod(pod, pvc); err != nil {
			return err
		}
	}
	switch {
	case pvc.DeletionTimestamp != nil && !slices.Contains(pvc.Finalizers, pvcProtection):
		return fmt.Errorf("claim %q is being deleted", pvc.Name)
	case pvc.Status.Phase != corev1.ClaimBound || pvc.Spec.VolumeName == "":
		return fmt.Errorf("claim %q is not bound", pvc.Name)
	default:
		return nil
	}
}

// checkBinding checks that the volume is bound to this very claim.
func checkBinding(pvc *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) error {
	ref := pv.Spec.ClaimRef
	switch {
	case ref == nil:
		return fmt.Errorf("volume %q is bound to no claim, but claim %q names it", pv.Name, pvc.Name)
	case ref.UID != pvc.UID:
		return fmt.Errorf("volume %q is bound to another claim (%s/%s with UID %q) than %q with UID %q",
			pv.Name, ref.Namespace, ref.Name, ref.UID, pvc.Name, pvc.UID)
	default:
		return nil
	}
}

// checkMode checks that the volume is used as what it is.
func checkMode(pv *corev1.PersistentVolume, block bool) *Problem {
	isBlock := isBlock(pv)
	switch {
	case isBlock && !block:
		return failedMount(fmt.Errorf("volume %q has volumeMode Block, but is specified in volumeMounts", pv.Name))
	case !isBlock && block:
		return &Problem{Reason: ReasonFailedMap,
			Err: fmt.Errorf("volume %q has volumeMode Filesystem, but is specified in volumeDevices", pv.Name)}
	case isBlock && (pv.Name == layout.DeviceStagingDir || pv.Name == layout.DevicePublishDir):
		return &Problem{Reason: ReasonFailedMap, Err: fmt.Errorf("the name of block volume %q is that of a directory of other volumes", pv.Name)}
	default:
		return nil
	}
}

func isBlock(pv *corev1.PersistentVolume) bool {
	return pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == corev1.PersistentVolumeBlock
}
