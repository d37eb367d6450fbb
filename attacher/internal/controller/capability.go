package controller

import (
	"errors"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/csikit/capability"
)

// errAccessModes is a combination of access modes that CSI has no counterpart for.
var errAccessModes = errors.New("access modes cannot be expressed in CSI")

// volumeCapability translates how the volume is to be used (CSI v1.13, "VolumeCapability").
func volumeCapability(spec *corev1.PersistentVolumeSpec, features Features, defaultFSType string) (*csi.VolumeCapability, error) {
	mode, err := accessMode(spec.AccessModes)
	if err != nil {
		return nil, err
	}
	use := capability.Use{AccessMode: mode, VolumeMode: spec.VolumeMode, FSType: defaultFSType, MountFlags: spec.MountOptions}
	if spec.CSI != nil && spec.CSI.FSType != "" {
		use.FSType = spec.CSI.FSType
	}
	return use.Capability(features.SingleNodeMultiWriter), nil
}

// accessMode picks the one mode that allows everything the list allows: an attachment has one, whereas
// a claim is asked for with each, and a node uses the first.
func accessMode(modes []corev1.PersistentVolumeAccessMode) (corev1.PersistentVolumeAccessMode, error) {
	has := func(mode corev1.PersistentVolumeAccessMode) bool { return slices.Contains(modes, mode) }
	switch {
	case has(corev1.ReadWriteOncePod) && slices.ContainsFunc(modes, isNot(corev1.ReadWriteOncePod)):
		return "", fmt.Errorf("%w: %v: ReadWriteOncePod must stand alone", errAccessModes, modes)
	case has(corev1.ReadOnlyMany) && has(corev1.ReadWriteOnce) && !has(corev1.ReadWriteMany):
		return "", fmt.Errorf("%w: %v: ReadOnlyMany and ReadWriteOnce exclude each other", errAccessModes, modes)
	}
	widest := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany, corev1.ReadOnlyMany, corev1.ReadWriteOnce, corev1.ReadWriteOncePod}
	if i := slices.IndexFunc(widest, has); i >= 0 {
		return widest[i], nil
	}
	return "", fmt.Errorf("%w: %v: none is known", errAccessModes, modes)
}

func isNot(mode corev1.PersistentVolumeAccessMode) func(corev1.PersistentVolumeAccessMode) bool {
	return func(other corev1.PersistentVolumeAccessMode) bool { return other != mode }
}
