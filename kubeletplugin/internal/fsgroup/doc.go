// Package fsgroup gives the files of a mounted volume to the fsGroup of a pod, as a kubelet does for a driver that cannot mount
// with a group: each file gets the group, the group may read and write it, and each directory has the setgid bit.
//
// The package knows no Kubernetes objects. Whether a volume is changed at all is decided by packages resolve and volume.
//
// Containers may change the volume while it is walked. So each file is opened once, relative to its directory and without
// following a link, and only what was opened is changed: a file that is replaced by a link in between leads nowhere.
package fsgroup
