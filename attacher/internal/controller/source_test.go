package controller

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

func TestSource(t *testing.T) {
	inTree := newPV(func(pv *corev1.PersistentVolume) {
		pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/x"}}
	})
	foreign := newPV(func(pv *corev1.PersistentVolume) { pv.Spec.CSI.Driver = "other" })
	both := func(va *storagev1.VolumeAttachment) { va.Spec.Source.InlineVolumeSpec = &newPV().Spec }
	neither := func(va *storagev1.VolumeAttachment) { va.Spec.Source = storagev1.VolumeAttachmentSource{} }

	tests := map[string]struct {
		reason string
		va     *storagev1.VolumeAttachment
		pv     *corev1.PersistentVolume
		handle string
		err    error
	}{
		"PV":      {reason: "the usual case", va: newVA(), pv: newPV(), handle: "vol-1"},
		"Inline":  {reason: "the volume is in the VolumeAttachment", va: newVA(vaInline(&newPV(pvHandle("in")).Spec)), handle: "in"},
		"NoPV":    {reason: "the PersistentVolume does not exist", va: newVA(), err: errSourceMissing},
		"Both":    {reason: "the two exclude each other", va: newVA(both), pv: newPV(), err: errSourceUnusable},
		"Neither": {reason: "there is nothing to attach", va: newVA(neither), err: errSourceUnusable},
		"InTree":  {reason: "not a CSI volume", va: newVA(), pv: inTree, err: errSourceUnusable},
		"Foreign": {reason: "a volume of another driver", va: newVA(), pv: foreign, err: errSourceUnusable},
		"Handle":  {reason: "a volume without a handle", va: newVA(), pv: newPV(pvHandle("")), err: errSourceUnusable},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			handle, err := handleOf(tt.va, tt.pv)
			if !errors.Is(err, tt.err) || handle != tt.handle {
				t.Errorf("%s: got %q, %v, want %q, %v", tt.reason, handle, err, tt.handle, tt.err)
			}
		})
	}
}

func handleOf(va *storagev1.VolumeAttachment, pv *corev1.PersistentVolume) (string, error) {
	source, err := newSource(va, pv)
	if err != nil {
		return "", err
	}
	volume, err := source.csi(testDriver)
	if err != nil {
		return "", err
	}
	return volume.VolumeHandle, nil
}

func TestSourceClaim(t *testing.T) {
	if claim := (source{}).claim(); claim != nil {
		t.Errorf("a source that was not found has claim %v", claim)
	}
	pv := newPV(func(pv *corev1.PersistentVolume) {
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "data", UID: "c-uid"}
	})
	s, err := newSource(newVA(), pv)
	if err != nil {
		t.Fatal(err)
	}
	claim := s.claim()
	if claim == nil || claim.Namespace != "ns" || claim.Name != "data" || claim.UID != "c-uid" {
		t.Errorf("claim = %v, want ns/data", claim)
	}
}
