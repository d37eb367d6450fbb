package csitest

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// GetPluginInfo returns the name and version of Options.
func (d *Driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &csi.GetPluginInfoResponse{Name: d.o.Name, VendorVersion: d.o.Version}, nil
}

// Probe reports whether the driver is ready (see SetReady).
func (d *Driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(!d.notReady)}, nil
}

// GetPluginCapabilities returns the services of Options and, if volumes can be
// expanded, the capability of online expansion, or of offline expansion as Options say.
func (d *Driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	reply := &csi.GetPluginCapabilitiesResponse{}
	for _, s := range d.o.Plugin {
		reply.Capabilities = append(reply.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{
			Service: &csi.PluginCapability_Service{Type: s},
		}})
	}
	expansion := csi.PluginCapability_VolumeExpansion_ONLINE
	if d.o.OfflineExpansion {
		expansion = csi.PluginCapability_VolumeExpansion_OFFLINE
	}
	if d.hasController(csi.ControllerServiceCapability_RPC_EXPAND_VOLUME) {
		reply.Capabilities = append(reply.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_VolumeExpansion_{
			VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: expansion},
		}})
	}
	return reply, nil
}
