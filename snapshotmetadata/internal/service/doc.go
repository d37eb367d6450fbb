// Package service is the gRPC service snapshotmetadata.SnapshotMetadata: it checks a request and its sender, finds the snapshot, and passes on
// what the driver streams, one message at a time.
package service
