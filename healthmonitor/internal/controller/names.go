package controller

import "github.com/longshore-csi/longshore/csikit/leader"

// Reasons of the events, those on claims and those on their pods.
const (
	// ReasonAbnormal: the driver reports problems of the volume, or others than before.
	ReasonAbnormal = "VolumeConditionAbnormal"
	// ReasonNormal: the driver does not report them any more.
	ReasonNormal = "VolumeConditionNormal"
	// ReasonUnknown: the driver reports a problem of a category that Kubernetes does not have.
	ReasonUnknown = "UnknownVolumeHealthCondition"
	// ReasonNodeFailed: a node on which the claim is in use is down.
	ReasonNodeFailed = "NodeFailed"
	// ReasonNodeRecovered: that node is ready again.
	ReasonNodeRecovered = "NodeRecovered"
)

// Component returns the name under which users see the events of the driver's health monitor. It is upstream's.
func Component(driver string) string { return "csi-pv-monitor-controller-" + driver }

// LeaseName returns the name of the Lease that the health monitors of a driver compete for.
func LeaseName(driver string) string {
	return leader.SanitizeName("external-health-monitor-leader-" + driver)
}
