// Package layout holds every name and path that the node side of CSI derives from other names:
// volume names, VolumeAttachment names, generated handles, and the kubelet's directory layout.
//
// Everything here is pure. The formulas are an interface to the attach/detach controller and to a
// real kubelet that may take over the same root directory, so they must not be changed.
// Do not use it to look at the disk: package disk does that.
package layout

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// Plugin is the name of the CSI volume plugin in unique volume names.
	Plugin = "kubernetes.io/csi"
	// PluginDir is Plugin as it appears in a path below a pod's directory.
	PluginDir = "kubernetes.io~csi"
	// RecordFile is the file name of the record beside a staging or target directory.
	RecordFile = "vol_data.json"
	// StagingLeaf is the last element of a staging path.
	StagingLeaf = "globalmount"
	// BlockDir is the directory of block volumes, beside those of the drivers and in a pod's directory.
	BlockDir = "volumeDevices"
	// DeviceStagingDir and DevicePublishDir are the directories of staging and target paths among those of block volumes.
	DeviceStagingDir, DevicePublishDir = "staging", "publish"
	// DeviceRecordLeaf and DeviceMapLeaf are in the directory of a block volume.
	DeviceRecordLeaf, DeviceMapLeaf = "data", "dev"
	// TargetLeaf is the last element of a target path.
	TargetLeaf = "mount"

	separator = "^"
)

// Attachment returns the name of the VolumeAttachment that the attach/detach controller creates
// for a volume on a node.
func Attachment(handle, driver, node string) string {
	return "csi-" + digest(handle, driver, node)
}

// SeedAttachment returns the name of a VolumeAttachment that seeds 000 and 001 give to it.
func SeedAttachment(pv, node string) string { return "pv-" + digest(pv, node) }

// InlineHandle returns the volume handle of an ephemeral inline volume (seed 003, "VolumeHandle generation"). It is stable for one pod and pod volume. The UID of
// a pod of Kubernetes and the name are joined without a separator, as the kubelet does it; other UIDs have no fixed length, and get one in front.
func InlineHandle(podUID types.UID, volume string) string {
	return "csi-" + digest(prefix(podUID)+string(podUID), volume)
}

// kubernetesUID matches the UIDs of pods: of the API server, and of a kubelet's static pods.
var kubernetesUID = regexp.MustCompile(`^([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32})$`)

// prefix keeps the names of two pods apart of whose UIDs one begins with the other one.
func prefix(uid types.UID) string {
	if kubernetesUID.MatchString(string(uid)) {
		return ""
	}
	return strconv.Itoa(len(uid)) + ":"
}

// Unique returns the name of a persistent volume in node.status.volumesInUse and volumesAttached.
func Unique(driver, handle string) string {
	return Plugin + "/" + driver + separator + handle
}

// UniqueInline returns the name of an inline volume, which belongs to one pod.
func UniqueInline(podUID types.UID, volume string) string {
	return Plugin + "/" + prefix(podUID) + string(podUID) + "-" + volume
}

// SplitUnique is the reverse of Unique. The handle may itself contain the separator. It is an error
// if the name is not that of a persistent CSI volume.
func SplitUnique(name string) (driver, handle string, err error) {
	rest, ok := strings.CutPrefix(name, Plugin+"/")
	if !ok {
		return "", "", fmt.Errorf("split volume name %q: it does not begin with %q", name, Plugin+"/")
	}
	driver, handle, ok = strings.Cut(rest, separator)
	if !ok || driver == "" || handle == "" {
		return "", "", fmt.Errorf("split volume name %q: want %s/<driver>%s<handle>", name, Plugin, separator)
	}
	return driver, handle, nil
}

// StagingKey returns the directory name of a volume handle below its driver.
func StagingKey(handle string) string { return digest(handle) }

// Escape makes a name usable as one path element, as the kubelet does it.
func Escape(name string) string { return strings.ReplaceAll(name, "/", "~") }

// Unescape is the reverse of Escape.
func Unescape(name string) string { return strings.ReplaceAll(name, "~", "/") }

func digest(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write([]byte(p))
	}
	return hex.EncodeToString(h.Sum(nil))
}
