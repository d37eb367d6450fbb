package controller

import (
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

// capabilities is what the driver can do, less what the features switch off.
type capabilities struct {
	// attributes: VolumeAttributesClasses are honoured; otherwise volumes are made as if claims had none.
	attributes bool
	// create: it creates and deletes volumes.
	create bool
	// publish: its volumes are attached, so that deletion must wait for detach.
	publish bool
	// modify: it takes mutable parameters.
	modify bool
	// topology: its volumes are not accessible from everywhere.
	topology bool
	// capacity: it reports its capacity (GET_CAPACITY).
	capacity bool
	// clone and snapshot: it makes volumes from volumes and from snapshots.
	clone, snapshot bool
	// singleNode: it distinguishes one writer on a node from many.
	singleNode bool
}

// capabilitiesOf returns the capabilities that were last read from the driver.
func capabilitiesOf(info *csiclient.Info, features Features) capabilities {
	if info == nil {
		return capabilities{}
	}
	controller := info.Plugin[csi.PluginCapability_Service_CONTROLLER_SERVICE]
	return capabilities{
		attributes: features.AttributesClass,
		create:     controller && info.Controller[csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME],
		publish:    controller && !features.SkipAttach && info.Controller[csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME],
		modify:     controller && features.AttributesClass && info.Controller[csi.ControllerServiceCapability_RPC_MODIFY_VOLUME],
		topology:   features.Topology && info.Plugin[csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS],
		capacity:   controller && info.Controller[csi.ControllerServiceCapability_RPC_GET_CAPACITY],
		clone:      controller && info.Controller[csi.ControllerServiceCapability_RPC_CLONE_VOLUME],
		snapshot:   controller && info.Controller[csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT],
		singleNode: controller && info.Controller[csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER],
	}
}

// ShapeOf returns the part of the capabilities of a driver that decides which objects are watched. A driver that comes back
// with another shape needs another view, and another Controller.
func ShapeOf(info *csiclient.Info, features Features) view.Shape {
	caps := capabilitiesOf(info, features)
	return view.Shape{Topology: caps.topology, Attachments: caps.publish, Snapshots: caps.snapshot, Grants: features.CrossNamespace}
}

// Check returns an error for a driver that announces too little for any volume to be made or deleted.
func Check(info *csiclient.Info) error {
	if !capabilitiesOf(info, Features{}).create {
		return fmt.Errorf("CSI driver %q does not announce %s", info.Name, csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME)
	}
	return nil
}
