package resolve

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// asking is a volume of a claim that asks for nothing, with changes.
func asking(change ...func(*request)) *request {
	r := &request{
		Pod: &corev1.Pod{}, Volume: &corev1.Volume{}, Driver: &storagev1.CSIDriver{},
		PV: &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				VolumeHandle: "vol-1", FSType: "ext4",
			}},
		}},
	}
	for _, f := range change {
		f(r)
	}
	return r
}

func caretHandle(r *request) { r.PV.Spec.CSI.VolumeHandle = "a^b" }

// TestFindUnsupported is when a volume asks for a feature, by the kubelet's rules.
func TestFindUnsupported(t *testing.T) {
	cases := map[string]struct {
		reason string
		r      *request
		want   []string
	}{
		"Nothing":         {reason: "an ordinary volume", r: asking()},
		"NoDriverObject":  {reason: "a driver without CSIDriver object", r: asking(func(r *request) { r.Driver = nil })},
		"Caret":           {reason: "attached, and never detached", r: asking(caretHandle), want: []string{"caret-in-handle"}},
		"CaretNoAttach":   {reason: "nothing to detach", r: asking(caretHandle, func(r *request) { r.Driver.Spec.AttachRequired = ptr(false) })},
		"CaretSelfAttach": {reason: "what attaches it detaches it, too", r: asking(caretHandle, func(r *request) { r.SelfAttach = true })},
		"MigratedInline":  {reason: "an in-tree volume in the pod", r: &request{Pod: &corev1.Pod{}, Volume: &corev1.Volume{VolumeSource: corev1.VolumeSource{AzureFile: &corev1.AzureFileVolumeSource{}}}}, want: []string{"csi-migration"}},
		"Other":           {reason: "a volume that is no business of CSI", r: &request{Pod: &corev1.Pod{}, Volume: &corev1.Volume{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, f := range findUnsupported(tc.r) {
				got = append(got, f.Feature)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("%s: got %v, want %v", tc.reason, got, tc.want)
			}
		})
	}
}
