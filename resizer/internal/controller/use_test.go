package controller

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestClaimsOf finds the claims of a pod by what the cache keeps of it: those that it names, and those that are made for it.
func TestClaimsOf(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", Labels: map[string]string{"app": "db"}}}
	template := &corev1.PersistentVolumeClaimTemplate{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "db"}}}
	for name, source := range map[string]corev1.VolumeSource{
		"named":     {PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim", ReadOnly: true}},
		"ephemeral": {Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: template}},
		"config":    {ConfigMap: &corev1.ConfigMapVolumeSource{}},
	} {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
	}
	slim := slimPod(pod)
	got := map[string]bool{}
	for _, key := range claimsOf(slim) {
		got[key] = true
	}
	if diff := cmp.Diff(map[string]bool{"ns/claim": true, "ns/pod-ephemeral": true}, got); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
	if len(slim.Spec.Volumes) != 2 || len(slim.Labels) > 0 {
		t.Errorf("the cache keeps %+v", slim)
	}
}
