package controller

import (
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/csikit/csiclient"
)

// Features are the driver's capabilities that concern snapshots. They are read again when the driver comes back, so an
// upgrade of the driver takes effect at once.
type Features struct {
	// Create: the driver implements CreateSnapshot and DeleteSnapshot.
	Create bool `json:"create"`
	// List: the driver implements ListSnapshots.
	List bool `json:"list"`
	// Get: the driver implements GetSnapshot (CSI 1.13, alpha).
	Get bool `json:"get"`
	// Topology: the driver restricts from where snapshots are accessible (CSI 1.13, alpha).
	Topology bool `json:"topology"`
	// Groups: the driver implements the calls for group snapshots.
	Groups bool `json:"groups"`
}

// FeaturesOf reads the capabilities of a driver.
func FeaturesOf(info *csiclient.Info) Features {
	if info == nil {
		return Features{}
	}
	f := Features{Groups: info.GroupController[csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT]}
	f.Topology = info.Plugin[csi.PluginCapability_Service_SNAPSHOT_ACCESSIBILITY_CONSTRAINTS]
	if info.Plugin[csi.PluginCapability_Service_CONTROLLER_SERVICE] {
		f.Create = info.Controller[csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT]
		f.List = info.Controller[csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS]
		f.Get = info.Controller[csi.ControllerServiceCapability_RPC_GET_SNAPSHOT]
	}
	return f
}

// Check returns an error if the driver cannot take snapshots, so that a snapshotter has nothing to do.
func (f Features) Check(driver string) error {
	if f.Create {
		return nil
	}
	return fmt.Errorf("driver %q does not announce CREATE_DELETE_SNAPSHOT: no snapshot is taken or deleted until it does. "+
		"If the driver never will, remove its csi-snapshotter", driver)
}
