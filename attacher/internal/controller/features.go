package controller

import (
	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/csikit/csiclient"
)

// Features are the driver's capabilities that concern attaching. They are read again when the driver comes back, so an
// upgrade of the driver takes effect at once.
type Features struct {
	// Publish: the driver implements ControllerPublishVolume and ControllerUnpublishVolume.
	Publish bool `json:"publish"`
	// Readonly: the driver understands the readonly field of a publish request.
	Readonly bool `json:"readonly"`
	// SingleNodeMultiWriter: the driver distinguishes one writer on a node from many.
	SingleNodeMultiWriter bool `json:"singleNodeMultiWriter"`
	// ListPublished: ListVolumes says to which nodes each volume is published.
	ListPublished bool `json:"listPublished"`
}

// FeaturesOf reads the capabilities of a driver.
func FeaturesOf(info *csiclient.Info) Features {
	if info == nil || !info.Plugin[csi.PluginCapability_Service_CONTROLLER_SERVICE] {
		return Features{}
	}
	can := info.Controller
	publish := can[csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME]
	return Features{
		Publish:               publish,
		Readonly:              publish && can[csi.ControllerServiceCapability_RPC_PUBLISH_READONLY],
		SingleNodeMultiWriter: publish && can[csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER],
		ListPublished: publish && can[csi.ControllerServiceCapability_RPC_LIST_VOLUMES] &&
			can[csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES],
	}
}
