package driverobject

import (
	"errors"

	"github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/longshore-csi/longshore/csikit/csiclient"
)

// Features are the driver's capabilities that concern its object. They are read again when the driver comes back, so that the object follows an
// upgrade of the driver.
type Features struct {
	// Controller: the driver has a controller service. Without it, the lack of a capability is no answer.
	Controller bool `json:"controller"`
	// Publish: the driver implements ControllerPublishVolume and ControllerUnpublishVolume.
	Publish bool `json:"publish"`
	// Capacity: the driver implements GetCapacity.
	Capacity bool `json:"capacity"`
}

// FeaturesOf reads the capabilities of a driver.
func FeaturesOf(info *csiclient.Info) Features {
	if info == nil || !info.Plugin[csi.PluginCapability_Service_CONTROLLER_SERVICE] {
		return Features{}
	}
	return Features{
		Controller: true,
		Publish:    info.Controller[csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME],
		Capacity:   info.Controller[csi.ControllerServiceCapability_RPC_GET_CAPACITY],
	}
}

// errNoController is a driver of which it is not known whether its volumes are attached.
var errNoController = errors.New("the driver does not announce CONTROLLER_SERVICE, so that its answers do not say whether volumes are attached: " +
	"run the registrar beside the driver's controller, or set --driver-requires-attachment")

// wanted returns the spec that the object shall have, of the fields that flags set and what the driver announces. Only attachRequired follows from a
// capability. GET_CAPACITY does not mean that capacities are published, and VOLUME_MOUNT_GROUP is an answer of the node service about a fsGroup that the
// kubelet passes whatever fsGroupPolicy is.
func wanted(flags storagev1.CSIDriverSpec, features Features) (storagev1.CSIDriverSpec, error) {
	spec := *flags.DeepCopy()
	if spec.AttachRequired != nil {
		return spec, nil
	}
	if !features.Controller {
		return storagev1.CSIDriverSpec{}, errNoController
	}
	spec.AttachRequired = &features.Publish
	return spec, nil
}

// capacity notes flags that ask the scheduler to respect capacities of a driver that reports none.
func (p *plan) capacity(spec storagev1.CSIDriverSpec, features Features) {
	if spec.StorageCapacity != nil && *spec.StorageCapacity && features.Controller && !features.Capacity {
		p.problem("storageCapacity", ReasonCapacity, "spec.storageCapacity is true, but the driver does not announce GET_CAPACITY: no CSIStorageCapacity objects are published, "+
			"and pods wait for them to be scheduled. Take --storage-capacity off %s", Manager)
	}
}
