// Package pods carries each pod of the node from being scheduled to being gone.
//
// There is no container runtime: a pod runs once all of its CSI volumes are published, and its
// containers end at once when it is deleted. What matters is the order: volumes are published before
// the pod is reported as running, and a pod is deleted only after its volumes are unpublished.
//
// What a pod needs next is decided by the pure function next and what is reported by pure functions
// in status.go; Controller acts. Mounting itself is in package volume.
package pods
