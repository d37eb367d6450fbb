// Package capabilities says what a driver can do for volumes, less what is switched off.
package capabilities

import (
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

// Features are the features that can be switched off.
type Features struct {
	// Topology sends topology requirements.
	Topology bool
	// AttributesClass sends the parameters of VolumeAttributesClasses.
	AttributesClass bool
	// SkipAttach deletes volumes without a look at VolumeAttachments, because the CSIDriver object says that there are none.
	SkipAttach bool
	// CrossNamespace makes volumes from sources in other namespaces, where a ReferenceGrant allows that.
	CrossNamespace bool
}

// Set is what a driver can do, less what the features switch off.
type Set struct {
	// Attributes: VolumeAttributesClasses are honoured; otherwise volumes are made as if claims had none.
	Attributes bool
	// Create: it creates and deletes volumes.
	Create bool
	// Publish: its volumes are attached, so that deletion must wait for detach.
	Publish bool
	// Modify: it takes mutable parameters.
	Modify bool
	// Topology: its volumes are not accessible from everywhere.
	Topology bool
	// Capacity: it reports its capacity (GET_CAPACITY).
	Capacity bool
	// Clone and Snapshot: it makes volumes from volumes and from snapshots.
	Clone, Snapshot bool
	// SingleNode: it distinguishes one writer on a node from many.
	SingleNode bool
}

// Of returns the capabilities that were last read from the driver.
func Of(info *csiclient.Info, features Features) Set {
	if info == nil {
		return Set{}
	}
	controller := info.Plugin[csi.PluginCapability_Service_CONTROLLER_SERVICE]
	return Set{
		Attributes: features.AttributesClass,
		Create:     controller && info.Controller[csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME],
		Publish:    controller && !features.SkipAttach && info.Controller[csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME],
		Modify:     controller && features.AttributesClass && info.Controller[csi.ControllerServiceCapability_RPC_MODIFY_VOLUME],
		Topology:   features.Topology && info.Plugin[csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS],
		Capacity:   controller && info.Controller[csi.ControllerServiceCapability_RPC_GET_CAPACITY],
		Clone:      controller && info.Controller[csi.ControllerServiceCapability_RPC_CLONE_VOLUME],
		Snapshot:   controller && info.Controller[csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT],
		SingleNode: controller && info.Controller[csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER],
	}
}

// ShapeOf returns the part of the capabilities of a driver that decides which objects are watched. A driver that comes back
// with another shape needs another view, and another Controller.
func ShapeOf(info *csiclient.Info, features Features) view.Shape {
	caps := Of(info, features)
	return view.Shape{Topology: caps.Topology, Attachments: caps.Publish, Snapshots: caps.Snapshot, Grants: features.CrossNamespace}
}

// Check returns an error for a driver that announces too little for any volume to be made or deleted.
func Check(info *csiclient.Info) error {
	if !Of(info, Features{}).Create {
		return fmt.Errorf("CSI driver %q does not announce %s", info.Name, csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME)
	}
	return nil
}
