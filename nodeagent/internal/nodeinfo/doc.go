// Package nodeinfo reports to the cluster which CSI drivers this node has: entries
// of the node's CSINode object, the node's topology labels, and the annotation
// csi.volume.kubernetes.io/nodeid (deprecated, but still read).
//
// It acts with the node's own identity, which may get, create, update and
// delete its CSINode and patch its Node, and may list or watch neither. It
// tries for as long as its context lasts and never ends the process: volumes
// that are mounted are served on while the API server is away.
//
// What to write is decided by the pure functions of entry.go, labels.go and
// annotation.go. The caller calls NodeGetInfo.
package nodeinfo
