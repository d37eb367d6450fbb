// Package driverkit makes a CSI driver of five functions.
//
// A driver is a struct of what it can do, Driver: a Provisioner, which creates and deletes volumes, and a Stager, which says on a node where their bytes are. Serve does the rest: the gRPC
// services of CSI v1.13, checks of requests, gRPC codes, idempotency, one call at a time per volume, deadlines, formatting, mounts, the node's journal and recovery after a
// crash, paging, metrics, traces, and logs without secrets.
//
//	type disks struct{ array *array.Client }
//
//	func (d *disks) Create(ctx context.Context, req *driverkit.CreateRequest) (*driverkit.Volume, error) { ... }
//	func (d *disks) Delete(ctx context.Context, req *driverkit.DeleteRequest) error                      { ... }
//	func (d *disks) Get(ctx context.Context, req *driverkit.GetRequest) (*driverkit.Volume, error)       { ... }
//	func (d *disks) Stage(ctx context.Context, req *driverkit.StageRequest) (*driverkit.Staged, error)   { ... }
//	func (d *disks) Unstage(ctx context.Context, req *driverkit.UnstageRequest) error                    { ... }
//
//	d := &disks{...}
//	err := driverkit.Serve(ctx, options, driverkit.Driver{Provisioner: d, Stager: d})
//
// Each further thing that the driver can do is one more field: with Attacher it serves ControllerPublishVolume, with Expand volume expansion, and so on. The capabilities that the driver
// announces follow from the fields and from Options.Support, and the start logs them. A wrapper of a part, for metrics or for several storage systems, takes its place in the struct.
//
// Package drivertest, a module of its own, tests any driver. Packages mount, filesystem and state are what the kit itself uses on a node; a
// driver may use them, too.
//
// On systems other than Linux the packages compile, so that the controller's half can be developed and tested there; nodes need Linux.
//
// The kit links no Kubernetes client: a driver knows CSI, and the components beside it know Kubernetes.
package driverkit
