// Package driverkit is a library for CSI drivers: what the node side of a driver
// does with the machine, as small packages that can be used one by one.
//
// Packages mount, filesystem and loop are interfaces to the kernel and to the
// programs of the machine, each with a fake for tests without privileges.
// Package state keeps records that survive a crash. None of them links gRPC or a
// Kubernetes client.
package driverkit
