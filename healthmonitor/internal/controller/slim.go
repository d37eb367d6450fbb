package controller

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// This file has the transforms of the caches, which keep the fields that are read, and no more.

// slimPV reduces volumes that are bound to the handle and the claim, and others to their names.
func slimPV(driver string) func(*corev1.PersistentVolume) *corev1.PersistentVolume {
	return func(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
		slim := &corev1.PersistentVolume{ObjectMeta: kube.SlimMeta(pv.ObjectMeta)}
		csi, ref := pv.Spec.CSI, pv.Spec.ClaimRef
		if csi == nil || csi.Driver != driver || csi.VolumeHandle == "" || ref == nil || pv.Status.Phase != corev1.VolumeBound {
			return slim
		}
		slim.Status.Phase = corev1.VolumeBound
		slim.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: csi.Driver, VolumeHandle: csi.VolumeHandle}
		slim.Spec.ClaimRef = &corev1.ObjectReference{Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID}
		return slim
	}
}

// isBound reports whether a volume of the cache is the driver's, and bound to a claim.
func isBound(pv *corev1.PersistentVolume) bool { return pv != nil && pv.Spec.CSI != nil }

// slimClaim keeps the volume and the reported health of a claim.
func slimClaim(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: kube.SlimMeta(claim.ObjectMeta),
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: claim.Spec.VolumeName},
		Status:     corev1.PersistentVolumeClaimStatus{HealthStatus: claim.Status.HealthStatus},
	}
}

// slimPod keeps the node and the claims of a pod that has not ended.
func slimPod(pod *corev1.Pod) *corev1.Pod {
	slim := &corev1.Pod{ObjectMeta: kube.SlimMeta(pod.ObjectMeta), Spec: corev1.PodSpec{NodeName: pod.Spec.NodeName}}
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return slim
	}
	for _, v := range pod.Spec.Volumes {
		var name string
		switch {
		case v.PersistentVolumeClaim != nil:
			name = v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			name = pod.Name + "-" + v.Name // KEP-1698
		default:
			continue
		}
		slim.Spec.Volumes = append(slim.Spec.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}})
	}
	return slim
}

// claimsOf returns the keys of the claims of a pod of the cache.
func claimsOf(pod *corev1.Pod) []string {
	keys := make([]string, 0, len(pod.Spec.Volumes))
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			keys = append(keys, pod.Namespace+"/"+v.PersistentVolumeClaim.ClaimName)
		}
	}
	return keys
}

// slimNode keeps whether a node is ready, and since when.
func slimNode(node *corev1.Node) *corev1.Node {
	slim := &corev1.Node{ObjectMeta: kube.SlimMeta(node.ObjectMeta)}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			slim.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime}}
		}
	}
	return slim
}
