// Package controller is the cluster's half of snapshots: it binds VolumeSnapshots and VolumeSnapshotContents, creates and deletes contents,
// copies what csi-snapshotter reports to the objects that users see, and protects claims while a snapshot of them is being taken.
//
// A VolumeSnapshot and the contents that refer to it share a key of one queue, so that no two workers decide about them at a time. For
// each key, a pure function decides on the next write from the objects in the caches (planSnapshot, planContent), a thin layer makes
// the write (act.go) and remembers its result in the cache, and this repeats until nothing is to be done. Nothing is stored
// elsewhere, so that a restart at any point continues with the same decision. Group snapshots do the same (planGroup), in a controller that
// runs while the server has their kinds.
//
// It is internal to the snapshotcontroller; embed that.
package controller
