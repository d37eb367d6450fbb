// Package api is the wire API of snapshot metadata in Kubernetes: service snapshotmetadata.SnapshotMetadata of KEP-3314, by which backup
// programs learn which blocks of a snapshot hold data or have changed. Names and numbers are those of the external-snapshot-metadata, so that
// its clients and servers can be mixed with ours.
//
// Package client calls it in a more convenient form. A program must not link this package together with the generated code of the
// external-snapshot-metadata: messages of one name can be registered only once in a process.
package api

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative snapshotmetadata.proto
