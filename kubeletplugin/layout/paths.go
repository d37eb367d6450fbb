package layout

import (
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"
)

// Root is the kubelet's root directory, usually /var/lib/kubelet.
type Root string

// Pods is the directory that has one directory for each pod.
func (r Root) Pods() string { return filepath.Join(string(r), "pods") }

// Pod is the directory of one pod.
func (r Root) Pod(uid types.UID) string { return filepath.Join(r.Pods(), string(uid)) }

// PodVolumes is the directory of a pod's CSI volumes.
func (r Root) PodVolumes(uid types.UID) string {
	return filepath.Join(r.Pod(uid), "volumes", PluginDir)
}

// TargetDir is the directory that holds the record and the target path of one volume of a pod.
// The volume is named by its PersistentVolume, or by the pod volume if it is inline.
func (r Root) TargetDir(uid types.UID, specName string) string {
	return filepath.Join(r.PodVolumes(uid), Escape(specName))
}

// Target is the target_path of NodePublishVolume.
func (r Root) Target(uid types.UID, specName string) string {
	return filepath.Join(r.TargetDir(uid, specName), TargetLeaf)
}

// Drivers is the directory that has one directory of staged volumes for each driver.
func (r Root) Drivers() string { return filepath.Join(string(r), "plugins", Plugin) }

// StagingDir is the directory that holds the record and the staging path of one volume.
func (r Root) StagingDir(driver, handle string) string {
	return filepath.Join(r.Drivers(), driver, StagingKey(handle))
}

// Staging is the staging_target_path of NodeStageVolume.
func (r Root) Staging(driver, handle string) string {
	return filepath.Join(r.StagingDir(driver, handle), StagingLeaf)
}

// Registry is the directory in which registrars put their sockets.
func (r Root) Registry() string { return filepath.Join(string(r), "plugins_registry") }

// Devices is the directory of raw block volumes, whose paths have the name of the PersistentVolume.
func (r Root) Devices() string { return filepath.Join(r.Drivers(), BlockDir) }

// DeviceDir is the directory that holds the record of a raw block volume, and what a kubelet maps for containers.
func (r Root) DeviceDir(specName string) string { return filepath.Join(r.Devices(), specName) }

// DeviceRecordDir is the directory of the record of a raw block volume.
func (r Root) DeviceRecordDir(specName string) string {
	return filepath.Join(r.DeviceDir(specName), DeviceRecordLeaf)
}

// DeviceMapDir is the directory in which a kubelet has a bind mount of the device for each pod, with the UID as its name.
func (r Root) DeviceMapDir(specName string) string {
	return filepath.Join(r.DeviceDir(specName), DeviceMapLeaf)
}

// DeviceMap is the bind mount of a device that a kubelet makes for a pod.
func (r Root) DeviceMap(uid types.UID, specName string) string {
	return filepath.Join(r.DeviceMapDir(specName), string(uid))
}

// DeviceStaging is the staging_target_path of a raw block volume.
func (r Root) DeviceStaging(specName string) string {
	return filepath.Join(r.Devices(), DeviceStagingDir, specName)
}

// DeviceTargetDir is the directory that has the target path of each pod that uses a raw block volume.
func (r Root) DeviceTargetDir(specName string) string {
	return filepath.Join(r.Devices(), DevicePublishDir, specName)
}

// DeviceTarget is the target_path of a raw block volume: the driver makes a file there.
func (r Root) DeviceTarget(uid types.UID, specName string) string {
	return filepath.Join(r.DeviceTargetDir(specName), string(uid))
}

// PodDevices is the directory of the links to a pod's raw block volumes.
func (r Root) PodDevices(uid types.UID) string { return filepath.Join(r.Pod(uid), BlockDir, PluginDir) }

// DeviceLink is the link to the target path of a raw block volume. A container runtime takes the device from there.
func (r Root) DeviceLink(uid types.UID, specName string) string {
	return filepath.Join(r.PodDevices(uid), specName)
}
