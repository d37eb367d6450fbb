package controller

import (
	"fmt"
	"sync/atomic"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/csikit/csiclient"
)

// Features are the driver's capabilities that concern expanding and modifying. They are read again when the driver comes back, so an
// upgrade of the driver takes effect at once.
type Features struct {
	// Expand: the driver implements ControllerExpandVolume.
	Expand bool `json:"expand"`
	// NodeExpand: the node plugin implements NodeExpandVolume. Without Expand, the node does the whole expansion.
	NodeExpand bool `json:"nodeExpand"`
	// OfflineOnly: the driver expands only volumes that are not in use (CSI v1.13, "PluginCapability").
	OfflineOnly bool `json:"offlineOnly"`
	// Modify: the driver implements ControllerModifyVolume.
	Modify bool `json:"modify"`
	// Lost: the driver had Expand before, as this process has seen. To leave its volumes to the nodes now would mean to record a size that they do not have.
	Lost bool `json:"lost,omitempty"`
	// SingleNodeMultiWriter: the driver distinguishes one writer on a node from many.
	SingleNodeMultiWriter bool `json:"singleNodeMultiWriter"`
}

// FeaturesOf reads the capabilities of a driver.
func FeaturesOf(info *csiclient.Info) Features {
	if info == nil {
		return Features{}
	}
	online, offline := info.Expansion[csi.PluginCapability_VolumeExpansion_ONLINE], info.Expansion[csi.PluginCapability_VolumeExpansion_OFFLINE]
	f := Features{
		NodeExpand:  info.Node[csi.NodeServiceCapability_RPC_EXPAND_VOLUME],
		OfflineOnly: offline && !online,
	}
	if info.Plugin[csi.PluginCapability_Service_CONTROLLER_SERVICE] {
		f.Expand = info.Controller[csi.ControllerServiceCapability_RPC_EXPAND_VOLUME]
		f.Modify = info.Controller[csi.ControllerServiceCapability_RPC_MODIFY_VOLUME]
		f.SingleNodeMultiWriter = info.Controller[csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER]
	}
	return f
}

// Expands reports whether the controller of a driver expands volumes, so that the node does not decide.
func Expands(info *csiclient.Info) bool { return FeaturesOf(info).Expand }

// RememberFeatures returns a function that reads the capabilities, and remembers whether the driver has had Expand. It is safe for concurrent use.
func RememberFeatures(info func() *csiclient.Info) func() Features {
	var expanded atomic.Bool
	return func() Features {
		f := FeaturesOf(info())
		if f.Expand {
			expanded.Store(true)
		}
		f.Lost = !f.Expand && expanded.Load()
		return f
	}
}

// expands reports whether volumes can be expanded, by the controller or by the node alone.
func (f Features) expands() bool { return f.Expand || f.NodeExpand && !f.Lost }

// Check returns an error if the driver can neither expand nor modify volumes, so that a resizer has nothing to do.
func (f Features) Check(driver string) error {
	if f.Lost {
		return fmt.Errorf("driver %q does not announce EXPAND_VOLUME of its controller, but did before: nothing is expanded until it does again. "+
			"If it is to leave that to the nodes from now on, restart csi-resizer", driver)
	}
	if f.expands() || f.Modify {
		return nil
	}
	return fmt.Errorf("driver %q announces none of EXPAND_VOLUME (controller or node) and MODIFY_VOLUME: "+
		"nothing is expanded or modified until it does. If the driver never will, remove its csi-resizer", driver)
}
