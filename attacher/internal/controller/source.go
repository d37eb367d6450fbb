package controller

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

var (
	// errSourceMissing is a PersistentVolume that does not exist.
	errSourceMissing = errors.New("does not exist")
	// errSourceUnusable is a VolumeAttachment whose volume this attacher cannot serve.
	errSourceUnusable = errors.New("is not served by this attacher")
)

// source is what a VolumeAttachment attaches, whichever way its spec names it.
type source struct {
	// pv is nil for a volume that is described in the VolumeAttachment itself.
	pv   *corev1.PersistentVolume
	spec *corev1.PersistentVolumeSpec
	// migrated: a volume of the in-tree plugin that the driver replaces. The spec is translated.
	migrated bool
}

// pvName returns the name of the PersistentVolume that va refers to, or nothing.
func pvName(va *storagev1.VolumeAttachment) string {
	if va.Spec.Source.PersistentVolumeName == nil {
		return ""
	}
	return *va.Spec.Source.PersistentVolumeName
}

// newSource pairs a VolumeAttachment with its volume. pv is nil when it does not
// exist or when va describes the volume inline; translate has returned it otherwise.
func newSource(va *storagev1.VolumeAttachment, pv *corev1.PersistentVolume) (source, error) {
	name, inline := pvName(va), va.Spec.Source.InlineVolumeSpec
	switch {
	case name != "" && inline != nil:
		return source{}, fmt.Errorf("VolumeAttachment %q %w: it names a PersistentVolume and an inline volume", va.Name, errSourceUnusable)
	case inline != nil:
		return source{spec: inline, migrated: isMigrated(va.Spec.Attacher, nil)}, nil
	case name == "":
		return source{}, fmt.Errorf("VolumeAttachment %q %w: it names no volume", va.Name, errSourceUnusable)
	case pv == nil:
		return source{}, fmt.Errorf("PersistentVolume %q %w", name, errSourceMissing)
	}
	return source{pv: pv, spec: &pv.Spec, migrated: isMigrated(va.Spec.Attacher, pv)}, nil
}

// label names the volume in messages.
func (s source) label() string {
	if s.pv == nil {
		return "inline volume"
	}
	return fmt.Sprintf("PersistentVolume %q", s.pv.Name)
}

// csi returns the CSI part of the source if it belongs to driver.
func (s source) csi(driver string) (*corev1.CSIPersistentVolumeSource, error) {
	csi := s.spec.CSI
	switch {
	case csi == nil:
		return nil, fmt.Errorf("%s %w: it is neither a CSI volume nor one of an in-tree plugin that driver %q replaces",
			s.label(), errSourceUnusable, driver)
	case csi.Driver != driver:
		return nil, fmt.Errorf("%s %w: its driver is %q, ours is %q", s.label(), errSourceUnusable, csi.Driver, driver)
	case csi.VolumeHandle == "":
		return nil, fmt.Errorf("%s %w: its volume handle is empty", s.label(), errSourceUnusable)
	}
	return csi, nil
}

// claim returns the claim that the source is bound to, or nil. It gets the events too.
func (s source) claim() *corev1.PersistentVolumeClaim {
	if s.spec == nil || s.spec.ClaimRef == nil {
		return nil
	}
	ref := s.spec.ClaimRef
	claim := &corev1.PersistentVolumeClaim{}
	claim.APIVersion, claim.Kind = "v1", "PersistentVolumeClaim"
	claim.Namespace, claim.Name, claim.UID = ref.Namespace, ref.Name, ref.UID
	return claim
}
