package driverkit

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/version"
)

// identity serves csi.v1.Identity.
type identity struct {
	csi.UnimplementedIdentityServer
	*kit
}

// GetPluginInfo names the driver.
func (i *identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: i.DriverName, VendorVersion: version.Get().Version}, nil
}

// GetPluginCapabilities announces what the driver consists of, the same in controller and node processes.
func (i *identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	answer := &csi.GetPluginCapabilitiesResponse{}
	add := func(announced bool, service csi.PluginCapability_Service_Type) {
		if announced {
			answer.Capabilities = append(answer.Capabilities, &csi.PluginCapability{
				Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: service}},
			})
		}
	}
	topology := len(i.TopologyKeys) > 0
	add(i.hasController(), csi.PluginCapability_Service_CONTROLLER_SERVICE)
	add(topology, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS)
	add(topology && i.driver.Snapshotter != nil, csi.PluginCapability_Service_SNAPSHOT_ACCESSIBILITY_CONSTRAINTS)
	add(i.driver.GroupSnapshotter != nil, csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE)
	add(i.driver.Blocks != nil, csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE)
	if i.expands() {
		kind := csi.PluginCapability_VolumeExpansion_ONLINE
		if i.OfflineExpansion {
			kind = csi.PluginCapability_VolumeExpansion_OFFLINE
		}
		answer.Capabilities = append(answer.Capabilities, &csi.PluginCapability{
			Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: kind}},
		})
	}
	return answer, nil
}

// Probe reports whether the driver has started: not ready means that it is "still initializing, but otherwise perfectly healthy" (CSI v1.13, "Probe"). Once it was ready it stays so: an outage of
// the storage system is no reason to restart drivers, which liveness probes do.
func (i *identity) Probe(ctx context.Context, _ *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	err := i.start(ctx)
	if err != nil {
		klog.FromContext(ctx).Info("The driver is not ready yet", logging.KeyReason, err.Error())
	}
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(err == nil)}, nil
}

// start is probe until that has succeeded once.
func (k *kit) start(ctx context.Context) error {
	if k.started.Load() {
		return nil
	}
	err := k.probe(ctx)
	if err == nil {
		k.started.Store(true)
	}
	return err
}

// probe asks the driver, if it has a Probe.
func (k *kit) probe(ctx context.Context) error {
	if k.driver.Probe == nil {
		return nil
	}
	return k.driver.Probe(ctx)
}

// hasController reports whether the driver has anything that is called on a controller.
func (k *kit) hasController() bool {
	d := &k.driver
	return d.Provisioner != nil || d.Attacher != nil || d.Snapshotter != nil || d.List != nil || d.Capacity != nil || d.Expand != nil || d.Modify != nil || d.VolumeHealth != nil
}

// expands reports whether volumes can grow.
func (k *kit) expands() bool { return k.driver.Expand != nil || k.driver.ExpandOnNode != nil }
