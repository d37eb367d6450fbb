// Package volume stages, publishes, unpublishes and unstages CSI volumes on one node.
//
// One actor per volume issues every call for it, one at a time. Each turn the actor asks the pure
// function plan what to do next, does that one thing, and lets the pure function settle record the
// result; plan sees nothing but the state, so what it decides can be tested without a driver.
//
// The rules that hold at every moment:
//   - a record is on disk while the volume is, or may be, staged or published;
//   - the name of a volume that is attached is in volumesInUse while a record exists;
//   - a volume is unstaged only when no pod has it published, or may have;
//   - only the answer of the same call ends the doubt that an unanswered call left;
//   - a volume is used in one form at a time: as a file system, with one SELinux context or none, or as the raw block device of one PersistentVolume;
//   - nothing is unpublished unless a pod is positively known not to want it any more;
//   - a pod gets a volume when its files have the pod's fsGroup, and keeps it whatever a repeated NodePublishVolume answers.
//
// The package does not read pods, claims or volumes (see package resolve), does not scan the disk
// (see package recovery) and does not talk to the Node object (see package inuse).
package volume
