package grpcapi

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// IdentityConfig configures the Identity service.
type IdentityConfig struct {
	// Name of the driver: a domain name, as in CSIDriver objects.
	Name string
	// Version of the vendor.
	Version string
	// Controller is true when the driver has a Controller service, in this
	// process or in another one (CSI v1.13, "Architecture": only a headless
	// plugin leaves CONTROLLER_SERVICE out).
	Controller bool
	// Topology is true when volumes are not reachable from every node.
	Topology bool
	// Expansion is true when volumes can be made larger, in use or, with
	// OfflineExpansion, only when no node uses them.
	Expansion        bool
	OfflineExpansion bool
	// Snapshots is true when there are snapshots, which are reachable from
	// where their volumes are.
	Snapshots bool
	// Groups is true when the driver has a GroupController service, in this
	// process or in another one.
	Groups bool
	// Metadata is true when the driver has a SnapshotMetadata service.
	Metadata bool
	// Ready reports whether calls can be served; nil means always.
	Ready func(context.Context) error
}

// Identity serves csi.v1.Identity.
type Identity struct {
	csi.UnimplementedIdentityServer

	cfg IdentityConfig
}

var _ csi.IdentityServer = (*Identity)(nil)

// NewIdentity returns the service.
func NewIdentity(cfg IdentityConfig) *Identity {
	return &Identity{cfg: cfg}
}

// Register adds the service to a server.
func (i *Identity) Register(r grpc.ServiceRegistrar) {
	csi.RegisterIdentityServer(r, i)
}

// GetPluginInfo names the driver. A real driver does the same.
func (i *Identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: i.cfg.Name, VendorVersion: i.cfg.Version}, nil
}

// GetPluginCapabilities announces what the driver consists of. A real driver
// does the same, equally in its controller and in its node processes.
func (i *Identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	answer := &csi.GetPluginCapabilitiesResponse{}
	add := func(announced bool, service csi.PluginCapability_Service_Type) {
		if announced {
			answer.Capabilities = append(answer.Capabilities, &csi.PluginCapability{
				Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: service}},
			})
		}
	}
	add(i.cfg.Controller, csi.PluginCapability_Service_CONTROLLER_SERVICE)
	add(i.cfg.Topology, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS)
	add(i.cfg.Topology && i.cfg.Snapshots, csi.PluginCapability_Service_SNAPSHOT_ACCESSIBILITY_CONSTRAINTS)
	add(i.cfg.Groups, csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE)
	add(i.cfg.Metadata, csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE)
	if i.cfg.Expansion {
		kind := csi.PluginCapability_VolumeExpansion_ONLINE
		if i.cfg.OfflineExpansion {
			kind = csi.PluginCapability_VolumeExpansion_OFFLINE
		}
		answer.Capabilities = append(answer.Capabilities, &csi.PluginCapability{
			Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: kind}},
		})
	}
	return answer, nil
}

// Probe reports whether the driver can work. A real driver checks here what it
// depends on: credentials, the connection to its storage system.
func (i *Identity) Probe(ctx context.Context, _ *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	ready := i.cfg.Ready == nil || i.cfg.Ready(ctx) == nil
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(ready)}, nil
}
