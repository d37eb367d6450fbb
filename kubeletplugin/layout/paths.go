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
