package controller

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/csikit/capability"
)

// volumeCapability translates how the volume is to be used (CSI v1.13, "VolumeCapability").
func volumeCapability(spec *corev1.PersistentVolumeSpec, features Features, defaultFSType string) (*csi.VolumeCapability, error) {
	mode, err := capability.Widest(spec.AccessModes)
	if err != nil {
		return nil, err
	}
	use := capability.Use{AccessMode: mode, VolumeMode: spec.VolumeMode, FSType: defaultFSType, MountFlags: spec.MountOptions}
	if spec.CSI != nil && spec.CSI.FSType != "" {
		use.FSType = spec.CSI.FSType
	}
	return use.Capability(features.SingleNodeMultiWriter), nil
}
