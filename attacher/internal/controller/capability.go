package controller

import (
	"errors"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
)

// errAccessModes is a combination of access modes that CSI has no counterpart for.
var errAccessModes = errors.New("access modes cannot be expressed in CSI")

// volumeCapability translates how the volume is to be used (CSI v1.13, "VolumeCapability").
func volumeCapability(spec *corev1.PersistentVolumeSpec, features Features, defaultFSType string) (*csi.VolumeCapability, error) {
	mode, err := accessMode(spec.AccessModes, features.SingleNodeMultiWriter)
	if err != nil {
		return nil, err
	}
	capability := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode}}
	if spec.VolumeMode != nil && *spec.VolumeMode == corev1.PersistentVolumeBlock {
		capability.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
		return capability, nil
	}
	fsType := defaultFSType
	if spec.CSI != nil && spec.CSI.FSType != "" {
		fsType = spec.CSI.FSType
	}
	capability.AccessType = &csi.VolumeCapability_Mount{
		Mount: &csi.VolumeCapability_MountVolume{FsType: fsType, MountFlags: spec.MountOptions},
	}
	return capability, nil
}

// accessMode picks the one CSI mode that allows everything the list allows.
//
//nolint:gocyclo // a table, one line for each combination
func accessMode(modes []corev1.PersistentVolumeAccessMode, singleNodeMultiWriter bool) (csi.VolumeCapability_AccessMode_Mode, error) {
	has := func(mode corev1.PersistentVolumeAccessMode) bool { return slices.Contains(modes, mode) }
	switch {
	case has(corev1.ReadWriteOncePod) && slices.ContainsFunc(modes, isNot(corev1.ReadWriteOncePod)):
		return 0, fmt.Errorf("%w: %v: ReadWriteOncePod must stand alone", errAccessModes, modes)
	case has(corev1.ReadWriteOncePod) && singleNodeMultiWriter:
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, nil
	case has(corev1.ReadWriteOncePod):
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, nil
	case has(corev1.ReadWriteMany):
		return csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, nil
	case has(corev1.ReadOnlyMany) && has(corev1.ReadWriteOnce):
		return 0, fmt.Errorf("%w: %v: ReadOnlyMany and ReadWriteOnce exclude each other", errAccessModes, modes)
	case has(corev1.ReadOnlyMany):
		return csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, nil
	case has(corev1.ReadWriteOnce) && singleNodeMultiWriter:
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER, nil
	case has(corev1.ReadWriteOnce):
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, nil
	}
	return 0, fmt.Errorf("%w: %v: none is known", errAccessModes, modes)
}

func isNot(mode corev1.PersistentVolumeAccessMode) func(corev1.PersistentVolumeAccessMode) bool {
	return func(other corev1.PersistentVolumeAccessMode) bool { return other != mode }
}
