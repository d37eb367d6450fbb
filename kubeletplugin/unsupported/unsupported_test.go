package unsupported

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

func ptr[T any](v T) *T { return &v }

// request is a volume of a claim that asks for nothing, with changes.
func request(change ...func(*Request)) *Request {
	r := &Request{
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

func caretHandle(r *Request) { r.PV.Spec.CSI.VolumeHandle = "a^b" }

// TestFind is when a volume asks for a feature, by the kubelet's rules.
func TestFind(t *testing.T) {
	cases := map[string]struct {
		reason string
		r      *Request
		want   []string
	}{
		"Nothing":         {reason: "an ordinary volume", r: request()},
		"NoDriverObject":  {reason: "a driver without CSIDriver object", r: request(func(r *Request) { r.Driver = nil })},
		"Caret":           {reason: "attached, and never detached", r: request(caretHandle), want: []string{"caret-in-handle"}},
		"CaretNoAttach":   {reason: "nothing to detach", r: request(caretHandle, func(r *Request) { r.Driver.Spec.AttachRequired = ptr(false) })},
		"CaretSelfAttach": {reason: "what attaches it detaches it, too", r: request(caretHandle, func(r *Request) { r.SelfAttach = true })},
		"MigratedInline":  {reason: "an in-tree volume in the pod", r: &Request{Pod: &corev1.Pod{}, Volume: &corev1.Volume{VolumeSource: corev1.VolumeSource{AzureFile: &corev1.AzureFileVolumeSource{}}}}, want: []string{"csi-migration"}},
		"Other":           {reason: "a volume that is no business of CSI", r: &Request{Pod: &corev1.Pod{}, Volume: &corev1.Volume{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, f := range Find(tc.r) {
				got = append(got, f.Feature)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("%s: got %v, want %v", tc.reason, got, tc.want)
			}
		})
	}
}
