package hostpathdriver

import (
	"context"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// withoutControllerExpansion is a controller whose volumes are expanded by nodes alone.
type withoutControllerExpansion struct{ csi.ControllerServer }

// ControllerGetCapabilities leaves EXPAND_VOLUME out.
func (w withoutControllerExpansion) ControllerGetCapabilities(ctx context.Context, req *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	answer, err := w.ControllerServer.ControllerGetCapabilities(ctx, req)
	if err == nil {
		answer.Capabilities = slices.DeleteFunc(answer.Capabilities, func(c *csi.ControllerServiceCapability) bool {
			return c.GetRpc().GetType() == csi.ControllerServiceCapability_RPC_EXPAND_VOLUME
		})
	}
	return answer, err
}

// ControllerExpandVolume is switched off.
func (withoutControllerExpansion) ControllerExpandVolume(context.Context, *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	return nil, status.Error(codes.Unimplemented, "ControllerExpandVolume is switched off by --disable-controller-expansion")
}

// withoutNodeExpansion is a node that expands volumes in use without being called.
type withoutNodeExpansion struct{ csi.NodeServer }

// NodeGetCapabilities leaves EXPAND_VOLUME out.
func (w withoutNodeExpansion) NodeGetCapabilities(ctx context.Context, req *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	answer, err := w.NodeServer.NodeGetCapabilities(ctx, req)
	if err == nil {
		answer.Capabilities = slices.DeleteFunc(answer.Capabilities, func(c *csi.NodeServiceCapability) bool {
			return c.GetRpc().GetType() == csi.NodeServiceCapability_RPC_EXPAND_VOLUME
		})
	}
	return answer, err
}

// NodeExpandVolume is switched off.
func (withoutNodeExpansion) NodeExpandVolume(context.Context, *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	return nil, status.Error(codes.Unimplemented, "NodeExpandVolume is switched off by --disable-node-expansion")
}
