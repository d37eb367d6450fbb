// Package snapshotter takes and deletes the snapshots of one CSI driver: it carries out what VolumeSnapshotContents and
// VolumeGroupSnapshotContents ask for (CreateSnapshot, DeleteSnapshot, CreateVolumeGroupSnapshot, DeleteVolumeGroupSnapshot), and finds out
// what the driver knows about snapshots that exist already (GetSnapshot, ListSnapshots, GetVolumeGroupSnapshot).
//
// It is the component behind the binary csi-snapshotter, and replaces that of the external-snapshotter: flags, annotations, status,
// finalizers, events, Lease and metrics have the same names. A snapshot-controller, of any origin, makes the contents from
// VolumeSnapshots and VolumeGroupSnapshots; those are not read here.
//
//	o := snapshotter.NewOptions()
//	o.AddFlags(flags)
//	...
//	err := snapshotter.Run(ctx, o)
//
// Several instances can run in one process.
package snapshotter
