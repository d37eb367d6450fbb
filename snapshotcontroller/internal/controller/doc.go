// Package controller is the cluster's half of snapshots: it binds VolumeSnapshots and VolumeSnapshotContents, creates and deletes contents,
// copies what csi-snapshotter reports to the objects that users see, and protects claims while a snapshot of them is being taken.
//
// A VolumeSnapshot and the contents that refer to it share a key of one queue, so that no two workers decide about them at a time. For each
// key, a pure function (view.plan) decides on the next write from the objects in the caches, pairs.perform makes the write and remembers its
// result in the cache, and this repeats until nothing is to be done. Nothing is stored elsewhere, so that a restart at any point continues
// with the same decision.
//
// Group snapshots are the same algorithm over the same records (owner, content, class): the table of a kind has the names that differ, store
// the clients and caches; what groups alone have, their selector and their members, is in groups.go and member.go.
//
// It is internal to the snapshotcontroller; embed that.
package controller
