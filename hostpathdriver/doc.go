// Package hostpathdriver is a complete CSI driver that keeps volumes in
// directories of the machine. It is for development clusters, for tests of
// everything around a driver, and a template to copy a driver for real storage
// from.
//
// The public API is Options and Run. Below it are four layers, each with its
// own package: grpcapi (requests, error codes), volume (the domain, pure),
// idempotent (calling again, one call at a time), and backend (directories, with
// records and mounts by packages state and mount of driverkit). Package shared
// lets several processes serve one state directory.
//
// Do not use it to keep data that matters: a volume lives on one machine. The size
// of an image or a device is enforced, that of a directory only where the disk has
// project quotas.
package hostpathdriver
