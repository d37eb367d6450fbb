// Package snapshotmetadata serves to backup programs which blocks of a CSI driver's snapshots hold data, and which blocks have changed
// between two snapshots of a volume (KEP-3314): it authenticates and authorizes each caller by the API server, finds the snapshot behind a
// VolumeSnapshot, and passes on what the driver streams.
//
// It is the component behind the binary csi-snapshot-metadata, and replaces that of the external-snapshot-metadata: the flags, the gRPC
// service and the kind SnapshotMetadataService are the same. Package client is for backup programs, package api is the wire API.
//
//	o := snapshotmetadata.NewOptions()
//	o.AddFlags(flags)
//	...
//	err := snapshotmetadata.Run(ctx, o)
//
// Several instances can run in one process.
package snapshotmetadata
