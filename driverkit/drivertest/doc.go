// Package drivertest tests any Driver of package driverkit:
//
//	func TestDriver(t *testing.T) { drivertest.Run(t, newDriver) }
//
// Run has four parts. Contract calls the driver's functions directly, as often as a CO may. Sanity is the CSI project's suite csi-sanity. Walk lets a CO
// create, use and delete a volume while the driver is killed, the machine restarted, or the call's deadline passed, at each point at which that may
// matter. After each part, Leaks looks for volumes, mounts and records that are left.
//
// It is a module of its own, so that drivers have the dependencies of csi-sanity in their tests alone.
package drivertest
