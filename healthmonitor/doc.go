// Package healthmonitor reports the health of the volumes of one CSI driver to those who use them: by events on claims and pods, in the status of claims, and
// by metrics. It reads it with ControllerGetVolumeHealth and ControllerListVolumeHealth (CSI v1.13), or from the VolumeCondition of ListVolumes and
// ControllerGetVolume (CSI v1.12).
//
// It is the component behind the binary csi-external-health-monitor-controller, and replaces the external-health-monitor: flags, event reasons and Lease have
// the same names.
//
//	o := healthmonitor.NewOptions()
//	o.AddFlags(flags)
//	...
//	err := healthmonitor.Run(ctx, o)
//
// Several instances can run in one process. What nodes see of volumes is the kubelet's to report.
package healthmonitor
