// Package clusterregistrar creates the CSIDriver object of a CSI driver and keeps it as the driver's answers and the flags say.
//
// It is the component behind the binary csi-cluster-driver-registrar, and replaces the cluster-driver-registrar, which does not work with
// Kubernetes 1.22 and later.
//
//	o := clusterregistrar.NewOptions()
//	o.AddFlags(flags)
//	...
//	err := clusterregistrar.Run(ctx, o)
//
// Several instances can run in one process. A driver whose manifests have a CSIDriver object needs no registrar.
package clusterregistrar
