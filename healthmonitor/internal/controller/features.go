package controller

import (
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/csikit/csiclient"
)

// conditionCapability is VOLUME_CONDITION of the controller, CSI v1.12; the number is reserved in CSI v1.13.
const conditionCapability csi.ControllerServiceCapability_RPC_Type = 11

// Features are the driver's capabilities that concern the health of volumes. They are read again when the driver comes back.
type Features struct {
	// GetHealth: the driver implements ControllerGetVolumeHealth.
	GetHealth bool `json:"getVolumeHealth"`
	// ListHealth: the driver implements ControllerListVolumeHealth, which lists the volumes that have problems.
	ListHealth bool `json:"listVolumeHealth"`
	// Condition: ListVolumes and ControllerGetVolume have a VolumeCondition, as of CSI v1.12.
	Condition bool `json:"volumeCondition"`
	// GetVolume: the driver implements ControllerGetVolume.
	GetVolume bool `json:"getVolume"`
	// ListVolumes: the driver implements ListVolumes.
	ListVolumes bool `json:"listVolumes"`
}

// FeaturesOf reads the capabilities of a driver.
func FeaturesOf(info *csiclient.Info) Features {
	if info == nil || !info.Plugin[csi.PluginCapability_Service_CONTROLLER_SERVICE] {
		return Features{}
	}
	return Features{
		GetHealth:   info.Controller[csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH],
		ListHealth:  info.Controller[csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH],
		Condition:   info.Controller[conditionCapability],
		GetVolume:   info.Controller[csi.ControllerServiceCapability_RPC_GET_VOLUME],
		ListVolumes: info.Controller[csi.ControllerServiceCapability_RPC_LIST_VOLUMES],
	}
}

// categories reports whether the driver reports health by category, as of CSI v1.13, and not by a VolumeCondition. (LIST_VOLUME_HEALTH alone is no health: CSI
// v1.13 demands GET_VOLUME_HEALTH beside it, and a list of problems alone cannot show that one has ended.)
func (f Features) categories() bool { return f.GetHealth }

// lists reports whether the driver lists the health of volumes.
func (f Features) lists() bool {
	if f.categories() {
		return f.ListHealth
	}
	return f.Condition && f.ListVolumes
}

// gets reports whether the driver answers for a single volume.
func (f Features) gets() bool { return f.GetHealth || f.Condition && f.GetVolume }

// Check returns an error if the driver reports no health, so that a health monitor has nothing to do.
func (f Features) Check(driver string) error {
	if f.lists() || f.gets() {
		return nil
	}
	return fmt.Errorf("driver %q does not report the health of volumes: it announces neither GET_VOLUME_HEALTH, nor VOLUME_CONDITION with "+
		"LIST_VOLUMES or GET_VOLUME. Remove its csi-external-health-monitor-controller", driver)
}
