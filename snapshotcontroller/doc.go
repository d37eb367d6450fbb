// Package snapshotcontroller binds VolumeSnapshots and VolumeSnapshotContents of a cluster, of all drivers: it creates and deletes the contents
// by which each driver's csi-snapshotter takes and deletes snapshots, and copies the outcome to the objects that users see.
//
// It is the component behind the binary snapshot-controller, one per cluster, which never talks to a driver. It replaces that of the
// external-snapshotter: flags, object names, annotations, finalizers, events, Lease and metrics are the same, and it works with any
// csi-snapshotter.
//
//	o := snapshotcontroller.NewOptions()
//	o.AddFlags(flags)
//	...
//	err := snapshotcontroller.Run(ctx, o)
//
// Several instances can run in one process.
package snapshotcontroller
