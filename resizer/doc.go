// Package resizer expands and modifies the volumes of one CSI driver: it carries out what claims ask for by a larger
// spec.resources.requests.storage (ControllerExpandVolume) and by another spec.volumeAttributesClassName
// (ControllerModifyVolume).
//
// It is the component behind the binary csi-resizer, and replaces the external-resizer: flags, claim status, annotations, events,
// Lease and metrics have the same names.
//
//	o := resizer.NewOptions()
//	o.AddFlags(flags)
//	...
//	err := resizer.Run(ctx, o)
//
// Several instances can run in one process. File systems grow on the node: the kubelet does that, after the resizer.
package resizer
