// Package capability says in CSI's words how Kubernetes uses a volume: VolumeCapability (CSI v1.13).
//
// Provisioner, attacher and node describe one volume to the driver in three calls each, and drivers compare
// the descriptions. All three therefore translate here.
//
// What differs stays with the callers, because Kubernetes differs: a claim is asked for with one capability
// for each of its access modes, an attachment with the one that includes all, and a node uses the first.
// Whether a driver can do something is not the subject of this package: csiclient knows.
package capability

import (
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
)

// Use is how a volume is to be used.
type Use struct {
	// AccessMode is one that Mode knows.
	AccessMode corev1.PersistentVolumeAccessMode
	// VolumeMode is Block for a raw device. Nil means Filesystem, as in the API. All that follows is
	// about file systems and is not applied to devices.
	VolumeMode *corev1.PersistentVolumeMode
	// FSType is the type of the file system. Empty: the driver's choice.
	FSType string
	// MountFlags are the mount options. They may be sensitive.
	MountFlags []string
	// MountGroup is the group that owns the files, for drivers with the capability VOLUME_MOUNT_GROUP.
	MountGroup string
}

// Capability returns the capability to send to the driver. singleNodeModes is as for Mode.
func (u Use) Capability(singleNodeModes bool) *csi.VolumeCapability {
	capability := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: Mode(u.AccessMode, singleNodeModes)}}
	if u.VolumeMode != nil && *u.VolumeMode == corev1.PersistentVolumeBlock {
		capability.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
		return capability
	}
	capability.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{
		FsType: u.FSType, MountFlags: slices.Clone(u.MountFlags), VolumeMountGroup: u.MountGroup,
	}}
	return capability
}

// Mode translates an access mode. UNKNOWN, which must not be sent, is the result for modes that CSI does not define.
//
// singleNodeModes says that the driver distinguishes one writer on a node from many, which it announces by
// SINGLE_NODE_MULTI_WRITER (of the controller to controllers, of the node service to nodes; KEP-2485):
//
//	mode              without it                with it
//	ReadWriteOnce     SINGLE_NODE_WRITER        SINGLE_NODE_MULTI_WRITER
//	ReadWriteOncePod  SINGLE_NODE_WRITER        SINGLE_NODE_SINGLE_WRITER
//	ReadOnlyMany      MULTI_NODE_READER_ONLY    the same
//	ReadWriteMany     MULTI_NODE_MULTI_WRITER   the same
func Mode(mode corev1.PersistentVolumeAccessMode, singleNodeModes bool) csi.VolumeCapability_AccessMode_Mode {
	switch mode {
	case corev1.ReadWriteMany:
		return csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	case corev1.ReadOnlyMany:
		return csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case corev1.ReadWriteOnce:
		if singleNodeModes {
			return csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
		}
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	case corev1.ReadWriteOncePod:
		if singleNodeModes {
			return csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
		}
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	}
	return csi.VolumeCapability_AccessMode_UNKNOWN
}
