// Package attacher attaches volumes to nodes and detaches them: it carries out what the
// VolumeAttachment objects of one CSI driver ask for, by ControllerPublishVolume
// and ControllerUnpublishVolume.
//
// It is the component behind the binary csi-attacher, and replaces the external-attacher:
// flags, finalizers, annotations, Lease and metrics have the same names.
//
//	o := attacher.NewOptions()
//	o.AddFlags(flags)
//	...
//	err := attacher.Run(ctx, o)
//
// Several instances can run in one process. A driver that sets attachRequired: false in its
// CSIDriver object needs no attacher at all.
package attacher
