// Package driverkit makes a CSI driver of five functions.
//
// A driver implements Backend, which knows where the bytes of a volume are, and calls Serve. The kit does the rest: the gRPC services of CSI v1.13,
// checks of requests, gRPC codes, idempotency, one call at a time per volume, deadlines, formatting, mounts, the node's journal and recovery after a
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
//	err := driverkit.Serve(ctx, options, &disks{...})
//
// Further functions are optional interfaces: a Backend that implements Attacher serves ControllerPublishVolume, one that implements Expander serves
// volume expansion, and so on. The capabilities that the driver announces follow from the interfaces, and cannot differ from them.
//
// Package drivertest, a module of its own, tests any Backend. Packages mount, filesystem, loop and state are what the kit itself uses on a node; a
// Backend may use them, too, copier for copies of files and directory trees, and extent for their differences.
//
// The kit links no Kubernetes client: a driver knows CSI, and the components beside it know Kubernetes.
package driverkit
