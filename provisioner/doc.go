// Package provisioner makes volumes for PersistentVolumeClaims: it calls a CSI driver's CreateVolume,
// writes the PersistentVolume, and calls DeleteVolume when the reclaim policy
// asks for it. It is the whole of the binary csi-provisioner, to be run next to the controller plugin of
// one driver:
//
//	o := provisioner.NewOptions()
//	o.CSI.Address = "/run/csi/socket"
//	if err := o.Validate(); err != nil { ... }
//	err := provisioner.Run(ctx, o)
//
// Several instances may run in one process, each for its own driver. Do not use this package for drivers
// that provision without CSI, nor to attach, resize or snapshot volumes: other modules do that.
package provisioner
